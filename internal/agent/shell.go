package agent

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// ShellVariable is in the environment of what `mlenv-agent exec --shell=ID` runs, and has the ID.
const ShellVariable = "MLENV_SHELL"

// ShellPatience is how long a shell outlives the last word of whoever attends it. A
// container runtime may let what exec started run on when its connection is gone.
const ShellPatience = 45 * time.Second

// KeepShell says that somebody still attends the shell of that id, which may be about to start.
// The agent hangs it up when nobody has said so for ShellPatience.
func (c *Client) KeepShell(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPut, "/v1/shells/"+url.PathEscape(id), nil, nil)
}

// EndShell hangs up what still runs of a shell, as a terminal that goes away does. A shell that
// has ended is no error.
func (c *Client) EndShell(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/shells/"+url.PathEscape(id), nil, nil)
}
