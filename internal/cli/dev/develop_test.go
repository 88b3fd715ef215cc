// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/watch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// find returns the command with that name.
func find(t *testing.T, name string) *cobra.Command {
	t.Helper()
	for _, cmd := range Commands() {
		if cmd.Name() == name {
			return cmd
		}
	}
	t.Fatalf("no command %s", name)
	return nil
}

// All mistakes are reported before the first request to a cluster.
func TestWrongUsage(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"up a --name=b", `environment "a" and --name "b": want one of them`},
		{"up a b", `arguments ["a" "b"]: want one environment or none`},
		{"up --on-busy=maybe", `--on-busy "maybe": want fail or wait`},
		{"down a b", `arguments ["a" "b"]: want one environment or none`},
		{"train", "want the training script"},
		{"train train.py again --launcher=mpi", "argument \"again\": want KEY=VALUE; arguments of the script go after --\n--launcher \"mpi\""},
		{"sync nowhere --requirements=/etc/x", "folder \"nowhere\": stat nowhere: no such file or directory\n--requirements \"/etc/x\": want a " +
			"path in the folder"},
		{"sync develop.go", "it is a file: want a folder"},
		{"shell one two", "arguments [\"one\" \"two\"]: want one node or none; a command goes after --\nnode \"one\": want its number"},
		{"open emacs", `service "emacs": want vscode, jupyter or tensorboard`},
		{"open", `service "": want vscode, jupyter or tensorboard`},
		{"open a b vscode", `arguments ["a" "b"]: want one environment or none`},
		{"open a vscode --name=b", `environment "a" and --name "b": want one of them`},
		{"port-forward 0 x --node=-1", "--node -1: want its number in the environment, 0 and up\nport \"0\": want a number, 1 to " +
			"65535\nport \"x\""},
		{"dev --dir=nowhere", "folder \"nowhere\""},
	} {
		args := strings.Fields(tc.args)
		var out bytes.Buffer
		code := command.RunCommands(t.Context(), find(t, args[0]), args[1:], io.Discard, &out)
		if code != command.WrongUsage || !strings.Contains(strings.ReplaceAll(out.String(), "\n  ", "\n"), tc.want) {
			t.Errorf("%s: exit code %d, %s; want %q", tc.args, code, &out, tc.want)
		}
	}
}

// Flags have the names that the steps give them, and help hides the flags that only a Task sets.
func TestFlagsOfSteps(t *testing.T) {
	for _, name := range []string{"up", "down", "train", "dev"} {
		usage := find(t, name).Flags().FlagUsages()
		for shown, want := range map[string]bool{"--name ": true, "--cluster-file ": true, "--cluster ": name == "up", "--namespace": true,
			"--run-uid": false, "-result": false, "--client-certs": false} {
			if strings.Contains(usage, shown) != want {
				t.Errorf("%s: help shows %s: %t, want %t", name, shown, !want, want)
			}
		}
	}
}

// mlenv up takes whatever its flags omit from the cluster, including the content of the cluster file.
func TestUpCompletesTheRequest(t *testing.T) {
	text, err := os.ReadFile("../../../clusters/cairo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pipeline := &pipelinev1.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: launch.Pipeline, Namespace: "ns"}, Spec: pipelinev1.PipelineSpec{
		Params: pipelinev1.ParamSpecs{{Name: "steps-image", Default: pipelinev1.NewStructuredValues("registry.test/steps@sha256:1")}}}}
	for content, problem := range map[string]string{string(text): "", "cluster: {nam: x}\n": "mlenv-cluster-cairo:1:11: cluster.nam: " +
		"unknown key"} {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mlenv-cluster-cairo", Namespace: "ns"},
			Data: map[string]string{"cluster.yaml": content}}
		clients := &kube.Clients{Kube: fake.NewClientset(config), Tekton: tektonfake.NewSimpleClientset(pipeline), Namespace: "ns"}
		request := objects.Request{Image: "registry.test/train:1"}
		err := new(up).complete(t.Context(), slog.New(slog.DiscardHandler), clients, &request)
		if problem != "" {
			if fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), problem) {
				t.Errorf("got %v, want %q", err, problem)
			}
			continue
		}
		if err != nil || request.StepsImage != "registry.test/steps@sha256:1" || request.Cluster.Cluster.API == "" ||
			request.Image != "registry.test/train:1" {
			t.Errorf("got steps image %s, cluster %+v, image %s, %v", request.StepsImage, request.Cluster.Cluster, request.Image, err)
		}
	}
}

// The session repeats its work after a change and after Enter, never twice in parallel.
func TestSessionLoop(t *testing.T) {
	var out bytes.Buffer
	s := session{folder: folder{Folder: syncrepo.Folder{Dir: "here"}}, log: command.TextLog(&out)}
	ctx, cancel := context.WithCancel(t.Context())
	changes, keys := make(chan watch.Change), make(chan struct{})
	began, ended := make(chan int), make(chan struct{})
	go func() {
		defer close(ended)
		turn := 0
		s.loop(ctx, func(ctx context.Context) error {
			turn++
			began <- turn
			if turn == 1 {
				return fail.Advise(fail.Becausef(fail.RankFailed, "rank 3 exited with 1"), "look at its log")
			}
			<-ctx.Done()
			return ctx.Err()
		}, changes, keys)
	}()
	turns := []int{<-began}
	changes <- watch.Change{Paths: []string{"train.py"}}
	turns = append(turns, <-began)
	keys <- struct{}{} // while the session is working
	turns = append(turns, <-began)
	close(keys)
	cancel()
	<-ended
	if diff := cmp.Diff([]int{1, 2, 3}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	if !strings.Contains(out.String(), "train.py changed.\n") {
		t.Errorf("output %q, want the change", out.String())
	}
}

func TestForward(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	wished := taken.Addr().(*net.TCPAddr).Port
	far := make(chan net.Conn, 1)
	port, wait, err := forward(ctx, slog.New(slog.DiscardHandler), wished, func(context.Context) (net.Conn, error) {
		near, other := net.Pipe()
		far <- other
		return near, nil
	})
	if err != nil || port == wished {
		t.Fatalf("port %d, %v, want a port other than %d, which is in use", port, err, wished)
	}
	conn, err := net.Dial("tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		other := <-far
		_, _ = io.CopyN(other, other, 5)
		other.Close()
	}()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	cancel()
	wait()
	if _, err := net.Dial("tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()); err == nil {
		t.Error("the port is still forwarded after the end")
	}
}
