// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// Exec is a command to run in a running container, as kubectl exec does.
type Exec struct {
	Namespace, Pod, Container string
	Command                   []string
	// Stdin may be nil. Stderr is not used with TTY, whose output is one.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal of the sizes from Sizes.
	TTY   bool
	Sizes remotecommand.TerminalSizeQueue
}

// ExitError is the exit code of a command that ran and did not exit with 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("the command exited with %d", e.Code) }

// Run runs the command over WebSockets, or over SPDY if the API server or a proxy refuses WebSockets. The end of ctx closes
// the connection, but not the command with every runtime. Errors: *ExitError, PermissionDenied, AgentUnreachable.
func (e Exec) Run(ctx context.Context, clients *Clients) error {
	target := clients.Kube.CoreV1().RESTClient().Post().Resource("pods").
		Namespace(e.Namespace).Name(e.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: e.Container, Command: e.Command, TTY: e.TTY,
			Stdin: e.Stdin != nil, Stdout: e.Stdout != nil, Stderr: e.Stderr != nil && !e.TTY,
		}, scheme.ParameterCodec).URL()
	overWebSocket, err := remotecommand.NewWebSocketExecutor(clients.Config, "GET", target.String())
	overSPDY, errSPDY := remotecommand.NewSPDYExecutor(clients.Config, "POST", target)
	// After a failed upgrade nothing has run. The second error is better: it decodes the API server's answer.
	executor, errFallback := remotecommand.NewFallbackExecutor(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err := cmp.Or(err, errSPDY, errFallback); err != nil {
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
