package agent

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// The modes of a network.
const (
	TCP  = "tcp"
	RDMA = "rdma"
)

// Network is how the processes of a node talk to those of others: the body of PUT
// /v1/network. It holds for whatever the agent starts from then on, shells too, and
// through a restart of the container.
type Network struct {
	// Mode is tcp or rdma.
	Mode string `json:"mode"`
	// Rack that the node is in, "" where it is not known.
	Rack string `json:"rack,omitempty"`
	// Set are variables that win over the container's own, as an image may have wrong
	// ones; Unset must not be set. A job's own variables win over both.
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
	// Expected and Forced are what Set was derived with, to derive it again.
	Expected rdma.Expected     `json:"expected"`
	Forced   map[string]string `json:"forced,omitempty"`
}

var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// Validate returns what is wrong with n, nil if nothing is.
func (n Network) Validate() error {
	if n.Mode != TCP && n.Mode != RDMA {
		return fmt.Errorf("mode %q: want tcp or rdma", n.Mode)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(n.Set)), n.Unset) {
		if !variableName.MatchString(name) {
			return fmt.Errorf("variable %q: want capital letters, digits and underscores", name)
		}
	}
	return nil
}
