// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
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

// AllowSSH lets the owner of an Ed25519 key connect by ssh during the next minute. Errors: InvalidInput.
func (c *Client) AllowSSH(ctx context.Context, key string) (SSHServer, error) {
	return requestJSON[SSHServer](ctx, c, http.MethodPut, "/v1/ssh", SSHKey{Key: key})
}
