package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	stateDir    = "/var/lib/ml-dev-env-localcluster"
	kubeconfig  = stateDir + "/kubeconfig"
	clusterFile = "clusters/local.yaml"
	registry    = "10.223.0.2:5000"
	// trainingImage exists from the start, because its build is not timed.
	trainingImage = registry + "/training:latest"
	gitServer     = "10.223.0.2"
)

// repository holds the script of the trainings.
//
//go:embed repository/train.py
var repository embed.FS

// place is a namespace of this run's own, with ml-dev-env installed.
type place struct {
	table
	// work is a folder on this machine.
	work string
	// name is the name of the namespace, and of the repository on the cluster's git server.
	name    string
	image   string
	clients *kube.Clients
}

func newPlace() (*place, error) {
	if _, err := os.Stat(kubeconfig); err != nil {
		return nil, errors.New("no local cluster is running; start it first: make cluster")
	}
	p := &place{name: "bench-train-" + strings.ToLower(rand.Text()[:6])}
	var err error
	if p.clients, err = (kube.Flags{Kubeconfig: kubeconfig, Namespace: p.name}).Connect(); err != nil {
		return nil, err
	}
	p.work, err = os.MkdirTemp("", "bench-train-")
	return p, err
}

// say prints progress.
func (p *place) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// install compiles ml-dev-env from this folder, and installs it and a repository on the cluster.
// It pulls the images to the nodes, where they are from the second use on.
func (p *place) install(ctx context.Context) error {
	p.say("compiling, and installing into namespace %s", p.name)
	if _, err := p.output(ctx, "go", "build", "-trimpath", "-o", p.work+"/", "./cmd/steps", "./cmd/mlenv"); err != nil {
		return err
	}
	image, err := p.output(ctx, p.work+"/mlenv", "bundle", "steps-image", "--push="+registry+"/bench-train/steps:latest", "--base="+registry+"/base/git:latest", "--platforms=linux/amd64")
	if err != nil {
		return err
	}
	p.image = strings.TrimSpace(image)
	if _, err := p.kubectl(ctx, "create", "namespace", p.name); err != nil {
		return err
	}
	if _, err := p.output(ctx, p.work+"/mlenv", "install", clusterFile, "--kubeconfig="+kubeconfig, "--namespace="+p.name, "--steps-image="+p.image); err != nil {
		return err
	}
	if err := p.publish(ctx); err != nil {
		return err
	}
	p.say("pulling the images to the nodes")
	const first = "first"
	if err := p.provision(ctx, first, "rwx"); err != nil {
		return err
	}
	return p.teardown(ctx, first)
}

// publish adds the repository to the cluster's git server.
func (p *place) publish(ctx context.Context) error {
	dir := filepath.Join(p.work, "repository")
	files, err := fs.Sub(repository, "repository")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"add", "--all"},
		{"-c", "user.name=bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "--message=one step"},
		{"clone", "--quiet", "--bare", ".", p.gitFolder()},
	} {
		if _, err := p.output(ctx, "git", append([]string{"-C", dir}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) gitFolder() string { return stateDir + "/git/repositories/" + p.name + ".git" }

// remove deletes everything that the benchmark created.
func (p *place) remove(ctx context.Context) error {
	p.say("removing namespace %s", p.name)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	_, err := p.kubectl(ctx, "delete", "namespace", p.name, "--ignore-not-found")
	return errors.Join(err, os.RemoveAll(p.gitFolder()), os.RemoveAll(p.work))
}

// output runs a program; the error contains its stderr if it fails.
func (p *place) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

func (p *place) kubectl(ctx context.Context, args ...string) (string, error) {
	return p.output(ctx, kubectlProgram, p.kubectlArgs(args...)...)
}

const kubectlProgram = stateDir + "/bin/kubectl"

func (p *place) kubectlArgs(args ...string) []string {
	return append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + p.name}, args...)
}

// step runs a step's own program on this machine, as a user would.
func (p *place) step(ctx context.Context, step string, args ...string) (string, error) {
	return p.output(ctx, p.work+"/steps", append([]string{step, "--kubeconfig=" + kubeconfig, "--namespace=" + p.name}, args...)...)
}

// provision creates an environment of two nodes with one GPU each.
func (p *place) provision(ctx context.Context, name, storage string) error {
	_, err := p.step(ctx, "provision", "--name="+name, "--cluster-file="+clusterFile, "--nodes=2", "--gpus-per-node=1",
		"--storage="+storage, "--image="+trainingImage, "--steps-image="+p.image)
	return err
}

func (p *place) teardown(ctx context.Context, name string) error {
	_, err := p.step(ctx, "teardown", "--name="+name)
	return err
}

// sync fetches the repository and copies it to the nodes.
func (p *place) sync(ctx context.Context, name string) error {
	_, err := p.step(ctx, "sync-repo", "--name="+name, "--repo-url=https://"+gitServer+"/"+p.name+".git", "--ca-file="+stateDir+"/pki/ca.crt")
	return err
}

// node is a pod of an environment.
type node struct {
	environment string
	ordinal     int
}

func (n node) pod() string { return objects.NamesOf(n.environment).PodName(n.ordinal) }

// agents connects to nodes of several environments as if they were one, by the pods' addresses, as
// a step in the cluster does.
func (p *place) agents(ctx context.Context, of []node) (nodes.Set, error) {
	var set nodes.Set
	for i, n := range of {
		credentials, err := nodes.Credentials(ctx, p.clients, n.environment, "")
		if err != nil {
			return nil, err
		}
		dial := nodes.PodDialer(p.clients.Kube, p.name, n.environment)
		set = append(set, agent.NewClient(i, objects.NamesOf(n.environment).TLSName(p.name, n.ordinal), credentials,
			func(ctx context.Context, _ int) (net.Conn, error) { return dial(ctx, n.ordinal) }))
	}
	return set, nil
}
