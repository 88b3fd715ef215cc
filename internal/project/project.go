// SPDX-License-Identifier: Apache-2.0

// Package project has the domain that the names of labels, annotations and events begin with.
package project

const (
	// LabelPrefix begins the keys of labels and annotations. GitHub gives the domain to the project's organization.
	LabelPrefix = "ml-dev-env.github.io/"
	// ReverseDomain begins the labels of images and the types of events, where OCI and CloudEvents want the domain reversed.
	ReverseDomain = "io.github.ml-dev-env."
	// EnvironmentLabel holds the name of the environment, on each of its objects and on receipts.
	EnvironmentLabel = LabelPrefix + "environment"
)
