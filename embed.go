// Package mldevenv carries the Tasks and Pipelines that its programs install.
package mldevenv

import "embed"

// Bundle holds tasks/NAME/NAME.yaml and pipelines/NAME/NAME.yaml.
//
//go:embed tasks/*/*.yaml pipelines/*/*.yaml
var Bundle embed.FS
