// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	stateDir    = "/var/lib/ml-dev-env-localcluster"
	kubeconfig  = stateDir + "/kubeconfig"
	clusterFile = "clusters/local.yaml"
	registry    = "10.223.0.2:5000"
	// trainingImage exists from the start, because its build is not timed. So does peersImage if the cluster has the peers.
	trainingImage = registry + "/training:latest"
	peersImage    = registry + "/training-peers:latest"
	gitServer     = "10.223.0.2"
)

// namespace is a namespace of these benchmarks, with ml-dev-env installed.
type namespace struct {
	// work is a folder on this machine.
	work string
	// name is the name of the namespace, and of the repository on the cluster's git server.
	name string
	// image is the image of the steps, and training the image of the nodes.
	image, training string
	clients         *kube.Clients
}

// used is the namespace that the benchmarks share; the first one creates it.
var used *namespace

func installed(b *testing.B) *namespace {
	b.Helper()
	if used != nil {
		return used
	}
	if _, err := os.Stat(kubeconfig); err != nil {
		b.Fatal("no local cluster is running; start it first: make cluster")
	}
	ns := &namespace{name: "bench-" + strings.ToLower(rand.Text()[:6]), training: trainingImage}
	options, err := os.ReadFile(stateDir + "/options.json")
	check(b, err)
	var with struct{ Peers bool }
	check(b, json.Unmarshal(options, &with))
	if with.Peers {
		ns.training = peersImage
	}
	// As build-image names it: otherwise provision waits until the kubelet tells the digest.
	digest, err := crane.Digest(ns.training)
	check(b, err)
	ns.training += "@" + digest
	ns.clients, err = (kube.Flags{Kubeconfig: kubeconfig, Namespace: ns.name}).Connect()
	check(b, err)
	ns.work, err = os.MkdirTemp("", "bench-")
	check(b, err)
	used = ns
	check(b, ns.install(b.Context()))
	return ns
}

// removeNamespace deletes everything that the benchmarks created.
func removeNamespace() error {
	if used == nil {
		return nil
	}
	const timeForTheNamespaceToGo = 3 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), timeForTheNamespaceToGo)
	defer cancel()
	_, err := used.kubectl(ctx, "delete", "namespace", used.name, "--ignore-not-found")
	return errors.Join(err, os.RemoveAll(used.gitFolder()), os.RemoveAll(used.work))
}

// install compiles ml-dev-env from this folder, and installs it and a repository on the cluster. It also pulls the
// images to the nodes, so that no benchmark measures the pull.
func (ns *namespace) install(ctx context.Context) error {
	if _, err := ns.output(ctx, "go", "build", "-o", ns.work+"/", "./cmd/steps", "./cmd/mlenv"); err != nil {
		return err
	}
	image, err := ns.output(ctx, "env", "BASE="+registry+"/base/git:latest", "PLATFORMS=linux/amd64", "cmd/steps/release/steps-image",
		registry+"/bench/steps")
	if err != nil {
		return err
	}
	ns.image = strings.TrimSpace(image)
	if _, err := ns.kubectl(ctx, "create", "namespace", ns.name); err != nil {
		return err
	}
	if _, err := ns.output(ctx, ns.work+"/mlenv", "install", clusterFile, "--kubeconfig="+kubeconfig, "--namespace="+ns.name, "--steps-image="+
		ns.image); err != nil {
		return err
	}
	if err := ns.publish(ctx); err != nil {
		return err
	}
	const first = "first"
	if err := ns.provision(ctx, first, "rwx"); err != nil {
		return err
	}
	return ns.teardown(ctx, first)
}

// publish adds the repository to the cluster's git server.
func (ns *namespace) publish(ctx context.Context) error {
	dir := filepath.Join(ns.work, "repository")
	if err := os.CopyFS(dir, os.DirFS("test/bench/testdata")); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"add", "--all"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "--message=one step"},
		{"clone", "--quiet", "--bare", ".", ns.gitFolder()},
	} {
		if _, err := ns.output(ctx, "git", append([]string{"-C", dir}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

func (ns *namespace) gitFolder() string { return stateDir + "/git/repositories/" + ns.name + ".git" }

// output runs a program; the error contains its stderr if it fails.
func (ns *namespace) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

func (ns *namespace) kubectl(ctx context.Context, args ...string) (string, error) {
	return ns.output(ctx, kubectlProgram, ns.kubectlArgs(args...)...)
}

const kubectlProgram = stateDir + "/bin/kubectl"

func (ns *namespace) kubectlArgs(args ...string) []string {
	return append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + ns.name}, args...)
}

// step runs a step's own program on this machine, as a user would.
func (ns *namespace) step(ctx context.Context, step string, args ...string) (string, error) {
	return ns.output(ctx, ns.work+"/steps", append([]string{step, "--kubeconfig=" + kubeconfig, "--namespace=" + ns.name}, args...)...)
}

// provision creates an environment of two nodes with one GPU each.
func (ns *namespace) provision(ctx context.Context, name, storage string) error {
	_, err := ns.step(ctx, "provision", "--name="+name, "--cluster-file="+clusterFile, "--nodes=2", "--gpus-per-node=1",
		"--storage="+storage, "--image="+ns.training, "--steps-image="+ns.image)
	return err
}

func (ns *namespace) teardown(ctx context.Context, name string) error {
	_, err := ns.step(ctx, "teardown", "--name="+name)
	return err
}

// sync fetches the repository and copies it to the nodes.
func (ns *namespace) sync(ctx context.Context, name string, args ...string) error {
	_, err := ns.step(ctx, "sync-repo", append([]string{"--name=" + name, "--repo-url=https://" + gitServer + "/" + ns.name + ".git",
		"--ca-file=" + stateDir + "/pki/ca.crt"}, args...)...)
	return err
}

// node is a pod of an environment.
type node struct {
	environment string
	ordinal     int
}

func (n node) pod() string { return env.Of(&kube.Clients{}, n.environment).PodName(n.ordinal) }

// agents connects to nodes of several environments as if they were one, by the pods' addresses, as
// a step in the cluster does.
func (ns *namespace) agents(ctx context.Context, of []node) (nodes.Set, error) {
	var set nodes.Set
	for i, n := range of {
		e := env.Of(ns.clients, n.environment)
		credentials, err := e.Credentials(ctx, "")
		if err != nil {
			return nil, err
		}
		dial := e.PodDialer(agent.Port)
		set = append(set, agent.NewClient(i, e.TLSName(n.ordinal), credentials,
			func(ctx context.Context, _ int) (net.Conn, error) { return dial(ctx, n.ordinal) }))
	}
	return set, nil
}
