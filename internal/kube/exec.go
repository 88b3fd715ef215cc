package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// Exec runs a command in a container until it ends, as kubectl exec does: over
// WebSockets, or SPDY where the API server or something on the way takes none. Where ctx
// ends first the command is not told, and goes on.
//
// The error has an exit code (ExitCode) where the command ended with one. Errors:
// PermissionDenied.
func Exec(ctx context.Context, clients *Clients, pod, container string, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
	target := clients.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(clients.Namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	overSPDY, err := remotecommand.NewSPDYExecutor(clients.Config, http.MethodPost, target)
	if err != nil {
		return err
	}
	overWebSocket, err := remotecommand.NewWebSocketExecutor(clients.Config, http.MethodGet, target.String())
	if err != nil {
		return err
	}
	// A command that has begun must not be run again: only where there is no connection is
	// the other tried, which says better why, for it decodes the API server's own answer.
	executor, err := remotecommand.NewFallbackExecutor(overWebSocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("running %s in container %s of pod %s/%s: %w", command[0], container, clients.Namespace, pod, err)
	if refusedRequest.MatchString(err.Error()) {
		return denied(err)
	}
	return err
}

// ExitCode is that of a command which Exec ran to its end.
func ExitCode(err error) (code int, ended bool) {
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return exit.Code, true
	}
	return 0, false
}
