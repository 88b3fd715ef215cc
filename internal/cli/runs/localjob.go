// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

// localJob is what a local run trains.
type localJob struct {
	nodes    local.Options
	source   syncrepo.Folder
	training train.Options
	commit   string
	// given are the params of the command line, for a run that is started like this one.
	given map[string][]string
}
