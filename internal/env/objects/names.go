// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// DefaultName is the environment of a request that names none.
const DefaultName = agent.DefaultName

// EnvironmentLabel of every object of an environment holds its name.
const EnvironmentLabel = project.EnvironmentLabel

// ModeAnnotation of the StatefulSet holds the Mode.
const ModeAnnotation = project.LabelPrefix + "mode"

// Labels returns the labels of every object of environment name.
func Labels(name string) map[string]string { return names.Labels(name) }

// MayMount reports whether the nodes of that environment mount the claim by its name, if it exists: a shared one, or one of each node.
// A cluster file may name others.
func MayMount(environment, claim string) bool {
	n := names.Of("", environment)
	for _, name := range []string{n.Workspace, n.Datasets} {
		if node, own := strings.CutPrefix(claim, name+"-"+n.StatefulSet+"-"); own {
			number, err := strconv.Atoi(node)
			return err == nil && claim == n.NodeClaim(name, number)
		}
		if claim == name {
			return true
		}
	}
	return false
}
