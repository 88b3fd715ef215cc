// SPDX-License-Identifier: Apache-2.0

// Package mldevenv carries what its programs install and build: Tasks, Pipelines
// and the folders of training images.
package mldevenv

import (
	"embed"
	"io/fs"
)

// Bundle holds tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml.
//
//go:embed tasks/*/*.yaml pipelines/*/*.yaml
var Bundle embed.FS

// Reasons is the page with a row for each reason: what it means, and what to do.
//
//go:embed docs/reference/reasons.md
var Reasons string

// Findings is the page with a row for each finding of the doctor.
//
//go:embed docs/reference/findings.md
var Findings string

// NCCL is the page with a row for each failure that NCCL's log may show.
//
//go:embed docs/reference/nccl.md
var NCCL string

//go:embed tasks/mlenv-build-image/images/*/*
var folders embed.FS

// Images has a folder for each flavour of training image.
func Images() fs.FS {
	images, err := fs.Sub(folders, "tasks/mlenv-build-image/images")
	if err != nil {
		panic(err) // the name is valid
	}
	return images
}
