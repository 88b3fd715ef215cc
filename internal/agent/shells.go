// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// ShellVariable has ID:PID in the environment of `mlenv-agent exec --shell=ID`, with the ID of that process: others inherit it.
const ShellVariable = "MLENV_SHELL"

// ShellPatience is how long a shell outlives the last sign of its terminal: a container runtime may leave it running when the connection
// has ended.
const ShellPatience = 45 * time.Second

// ShellGrace is the time between hanging up a shell and SIGKILL.
const ShellGrace = 5 * time.Second

// KeepShell keeps the shell of that id, which may not have started yet, for ShellPatience. After that the agent hangs it up.
func (c *Client) KeepShell(ctx context.Context, id string) error {
	return c.send(ctx, http.MethodPut, "/v1/shells/"+url.PathEscape(id), nil, nil)
}

// EndShell hangs up a shell, as the loss of its terminal does. A shell that has ended is not an error.
func (c *Client) EndShell(ctx context.Context, id string) error {
	return c.send(ctx, http.MethodDelete, "/v1/shells/"+url.PathEscape(id), nil, nil)
}
