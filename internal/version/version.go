// SPDX-License-Identifier: Apache-2.0

// Package version is the version of all programs of one build.
package version

// number is set by the linker: -X .../internal/version.number=v1.2.3.
var number = "devel"

// String returns the version, "devel" if the build did not set it.
func String() string { return number }
