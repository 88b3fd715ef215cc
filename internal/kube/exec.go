package kube

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec is a command to run in a container that runs, as kubectl exec does.
type Exec struct {
	Namespace, Pod, Container string
	Command                   []string
	// Stdin may be nil. Stderr is not used with TTY, whose output is one.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal of the sizes that Sizes tells, the first one at once.
	TTY   bool
	Sizes remotecommand.TerminalSizeQueue
}

// ExitError is the exit code of a command that ran and did not exit with 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("the command exited with %d", e.Code) }

// Run runs it over WebSockets, or SPDY where the API server or something on the way takes no
// WebSockets. When ctx ends the connection does, which not every container runtime takes as the
// end of the command. Errors: *ExitError, PermissionDenied, AgentUnreachable.
func (e Exec) Run(ctx context.Context, clients *Clients) error {
	target := clients.Kube.CoreV1().RESTClient().Post().Resource("pods").
		Namespace(e.Namespace).Name(e.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: e.Container, Command: e.Command, TTY: e.TTY,
			Stdin: e.Stdin != nil, Stdout: e.Stdout != nil, Stderr: e.Stderr != nil && !e.TTY,
		}, scheme.ParameterCodec).URL()
	overWebSocket, err := remotecommand.NewWebSocketExecutor(clients.Config, "GET", target.String())
	if err != nil {
		return fmt.Errorf("running a command in pod %s/%s: %w", e.Namespace, e.Pod, err)
	}
	overSPDY, err := remotecommand.NewSPDYExecutor(clients.Config, "POST", target)
	if err != nil {
		return fmt.Errorf("running a command in pod %s/%s: %w", e.Namespace, e.Pod, err)
	}
	// Nothing has run where the upgrade failed, and the second one says better why: it decodes
	// the API server's own answer.
	executor, err := remotecommand.NewFallbackExecutor(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("running a command in pod %s/%s: %w", e.Namespace, e.Pod, err)
	}
	options := remotecommand.StreamOptions{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Tty: e.TTY, TerminalSizeQueue: e.Sizes}
	if e.TTY {
		options.Stderr = nil
	}
	err = executor.StreamWithContext(ctx, options)
	var exited exec.CodeExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exited):
		return &ExitError{Code: exited.Code}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case refusedRequest.MatchString(err.Error()):
		return denied(fmt.Errorf("running a command in pod %s/%s: %w", e.Namespace, e.Pod, err))
	}
	return Unreachable(e.Namespace, e.Pod, err)
}
