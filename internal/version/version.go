// SPDX-License-Identifier: Apache-2.0

// Package version is the version of all programs of one build.
package version

import "runtime/debug"

// number is set by the linker: -X .../internal/version.number=v1.2.3. make bin/mlenv sets the commit and its date.
var number string

// String returns the version: the linker's, or that of the module (go install ...@v1.2.3), or "devel".
func String() string {
	if number != "" {
		return number
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
