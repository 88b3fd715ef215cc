// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// SSHKey is a user's public key, in the form of authorized_keys.
type SSHKey struct {
	Key string `json:"key"`
}

// SSHServer is where a node serves ssh: the port on the pod's loopback, and its host key in the form of authorized_keys.
type SSHServer struct {
	Port    int    `json:"port"`
	HostKey string `json:"hostKey"`
}

// AllowSSH lets the owner of an Ed25519 key connect by ssh during the next minute. Errors: InvalidInput, AgentVersion.
func (c *Client) AllowSSH(ctx context.Context, key string) (SSHServer, error) {
	server, err := ask[SSHServer](ctx, c, http.MethodPut, "/v1/ssh", SSHKey{Key: key})
	if IsNotFound(err) {
		err = fail.Becausef(fail.AgentVersion, "asking node %d for ssh: its agent is older than this program and has none", c.node)
		return server, fail.Advise(err, "mlenv up --on-change=recreate")
	}
	return server, err
}
