// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/client-go/tools/portforward"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
	"github.com/ml-dev-env/ml-dev-env/test/envtest"
)

// TestMain makes the test's own binary the mlenv that ssh runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == proxyCommand {
		os.Exit(mlenv(context.Background(), os.Stdout, os.Stderr, os.Args[1:]...))
	}
	agenttest.Main(m)
}

func mlenv(ctx context.Context, stdout, stderr io.Writer, args ...string) int {
	root := &cobra.Command{Use: "mlenv"}
	root.AddCommand(Commands()...)
	return command.RunCommands(ctx, root, args, stdout, stderr)
}

// forwardPods answers as the API server and the kubelet do when a client forwards a port of the node's loopback.
func forwardPods(node *agenttest.Node) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "status": {"userInfo": {"username": "h-kim"}}}`)
			return true
		case !strings.HasSuffix(r.URL.Path, "/pods/env-0/portforward"):
			return false
		case r.Method != http.MethodPost:
			http.Error(w, "no WebSockets", http.StatusBadRequest)
			return true
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return true
		}
		streams := make(chan httpstream.Stream, 2)
		upgraded := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
		if upgraded == nil {
			return true
		}
		defer upgraded.Close()
		problems, data := <-streams, <-streams
		defer problems.Close()
		conn, err := net.Dial("tcp", net.JoinHostPort(node.Config.Loopback, data.Headers().Get(corev1.PortHeader)))
		if err != nil {
			fmt.Fprint(problems, err)
			return true
		}
		defer conn.Close()
		go func() {
			_, _ = io.Copy(conn, data)
			conn.Close()
		}()
		_, _ = io.Copy(data, conn)
		return true
	}
}

// laptop is a user's machine with OpenSSH and the kubeconfig of an API server.
type laptop struct {
	*testing.T
	home string
	node *agenttest.Node
	api  *apitest.Server
}

func newLaptop(t *testing.T) *laptop {
	t.Helper()
	for _, program := range []string{"ssh", "scp", "rsync"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install openssh-client rsync", program)
		}
	}
	l := &laptop{T: t, home: filepath.Join(t.TempDir(), "a home 100%")}
	l.api = envtest.NewPool(t, 1, func(n *agenttest.Node) { l.node = n }).Server(t)
	l.api.Handle = forwardPods(l.node)
	l.write("kube config", `{"apiVersion": "v1", "kind": "Config", "current-context": "it's", "contexts": [
{"name": "it's", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u"}],
"clusters": [{"name": "c", "cluster": {"server": "`+l.api.Clients(nil).Config.Host+`"}}]}`)
	t.Setenv("HOME", l.home)
	t.Setenv("XDG_STATE_HOME", filepath.Join(l.home, "state"))
	// The commands of ssh have other variables and another folder.
	t.Chdir(l.home)
	t.Setenv("KUBECONFIG", "kube config")
	return l
}

func (l *laptop) write(name, content string) {
	l.Helper()
	path := filepath.Join(l.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		l.Fatal(err)
	}
}

func (l *laptop) read(name string) string {
	l.Helper()
	content, err := os.ReadFile(filepath.Join(l.home, name))
	if err != nil {
		l.Fatal(err)
	}
	return string(content)
}

// mlenv runs a command and returns its output and messages.
func (l *laptop) mlenv(code int, args ...string) (stdout, stderr string) {
	l.Helper()
	var out, problems bytes.Buffer
	if got := mlenv(l.Context(), &out, &problems, append(args, "--namespace=ns")...); got != code {
		l.Fatalf("mlenv %q: exit code %d, want %d:\n%s%s", args, got, code, out.String(), problems.String())
	}
	return out.String(), problems.String()
}

// run runs a program of OpenSSH with the configuration of the environment. It has another kubeconfig and current folder than mlenv had.
func (l *laptop) run(program string, args ...string) (string, error) {
	l.Helper()
	const timeForAClientToEnd = 2 * time.Minute
	ctx, cancel := context.WithTimeout(l.Context(), timeForAClientToEnd)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-F", filepath.Join(l.home, ".ssh/mlenv/env.conf")}, args...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), "KUBECONFIG=/dev/null", "XDG_STATE_HOME=/nowhere"), "/"
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ssh, scp and sftp reach a node by what ssh-config has written, through the API server, even after the agent has started again with
// other keys, and after the user's key was deleted.
func TestSSHConfigReachesANode(t *testing.T) {
	l := newLaptop(t)
	_, messages := l.mlenv(command.Done, "ssh-config", "env", "--write")
	if strings.Contains(messages, sshInclude) || l.read(".ssh/config") != sshInclude+"\n" {
		t.Errorf("a new configuration: %q, %s", l.read(".ssh/config"), messages)
	}
	reached := func(when string) {
		t.Helper()
		if out, err := l.run("ssh", "mlenv-env-0", "echo reached $NODE_RANK"); err != nil || out != "reached 0\n" {
			t.Fatalf("%s: %q, %v", when, out, err)
		}
	}
	reached("at first")
	workspace := l.node.Config.Paths.Workspace
	if out, err := l.run("scp", os.Args[0], "mlenv-env-0:"+workspace+"/program"); err != nil {
		t.Fatal(out, err)
	}
	if out, err := exec.Command("cmp", os.Args[0], filepath.Join(workspace, "program")).CombinedOutput(); err != nil {
		t.Error(string(out), err)
	}
	l.node.End()
	l.node.Restart()
	reached("a new agent")
	keys, err := filepath.Glob(filepath.Join(l.home, "state/mlenv/ssh/env-*/id_ed25519"))
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	if info, err := os.Stat(keys[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	if err := os.Remove(keys[0]); err != nil {
		t.Fatal(err)
	}
	l.mlenv(command.Done, "ssh-config", "env", "--write")
	reached("a new key")
	_, messages = l.mlenv(command.Failed, proxyCommand, "7", "--name=env")
	if !strings.Contains(messages, "node 7: environment ns/env has nodes 0 to 0") {
		t.Errorf("a node that does not exist: %s", messages)
	}
}

// mlenv changes nothing below ~/.ssh that it has not written.
func TestSSHConfigKeepsTheUsersFiles(t *testing.T) {
	l := newLaptop(t)
	out, _ := l.mlenv(command.Done, "ssh-config", "env", "--node=0")
	if _, err := os.Stat(filepath.Join(l.home, ".ssh")); !os.IsNotExist(err) || !strings.Contains(out, "\nHost mlenv-env-0\n") {
		t.Errorf("without --write: %q, %v", out, err)
	}
	if _, messages := l.mlenv(command.Failed, "ssh-config", "env", "--node=1"); !strings.Contains(messages, "has nodes 0 to 0") {
		t.Errorf("a node that does not exist: %s", messages)
	}
	const own = "Host mine\n  User me\n"
	l.write(".ssh/config", own)
	_, messages := l.mlenv(command.Done, "ssh-config", "env", "--write")
	if !strings.Contains(messages, "add this line at the top") || l.read(".ssh/config") != own || l.read(".ssh/mlenv/env.conf") != out {
		t.Errorf("a configuration of the user: %q, %s", l.read(".ssh/config"), messages)
	}
	l.write(".ssh/config", "include \"~/.ssh/mlenv/*.conf\"\n"+own)
	if _, messages := l.mlenv(command.Done, "ssh-config", "env", "--write"); strings.Contains(messages, "add this line") {
		t.Errorf("a configuration that includes mlenv's: %s", messages)
	}
	other := sshMark + ": environment other/env at https://api.example.com:6443\nHost mlenv-env-0\n"
	l.write(".ssh/mlenv/env.conf", other)
	_, messages = l.mlenv(command.Failed, "ssh-config", "env", "--write")
	if !strings.Contains(messages, "(environment other/env at https://api.example.com:6443)") || l.read(".ssh/mlenv/env.conf") != other {
		t.Errorf("the file of an environment of the same name: %q, %s", l.read(".ssh/mlenv/env.conf"), messages)
	}
	l.write(".ssh/mlenv/env.conf", own)
	_, messages = l.mlenv(command.Failed, "ssh-config", "env", "--write")
	if !strings.Contains(messages, "it has another author") || l.read(".ssh/mlenv/env.conf") != own {
		t.Errorf("a file of the user in mlenv's place: %q, %s", l.read(".ssh/mlenv/env.conf"), messages)
	}
}

// Of two that create the key at once one wins, and both have its key.
func TestSSHKeyIsCreatedOnce(t *testing.T) {
	f := sshFiles{"env", t.TempDir()}
	first, err := f.newKey()
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.newKey()
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%v: the second has another key", err)
	}
	if left, err := os.ReadDir(f.dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v; want the key alone", left, err)
	}
}
