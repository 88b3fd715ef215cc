// Package podagent runs temporary agents in pods that another project created, and removes every trace of them.
package podagent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

//go:embed helper.py
var helper string

// loader reads the helper from stdin: the command is part of the request's URL, which has a bound. It imports nothing from the
// current folder.
const loader = `import sys; sys.path[:] = [p for p in sys.path if p]; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))`

// Timeouts of the helper.
const (
	inspectTimeout = 30 * time.Second
	// startTimeout bounds the copy of the agent, and its first answer.
	startTimeout = 90 * time.Second
	// stopTimeout is how long the agent has to end by itself, removeTimeout bounds the whole removal.
	stopTimeout   = 10 * time.Second
	removeTimeout = 40 * time.Second
)

// Cluster reaches the containers.
type Cluster struct {
	Exec    func(ctx context.Context, pod Pod, command []string, stdin io.Reader, stdout, stderr io.Writer) error
	Forward func(ctx context.Context, pod Pod, port int) (net.Conn, error)
}

// NewCluster returns a Cluster over the API server.
func NewCluster(clients *kube.Clients) Cluster {
	return Cluster{
		Exec: func(ctx context.Context, pod Pod, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
			return kube.Exec{
				Namespace: clients.Namespace, Pod: pod.Name, Container: pod.Container, Command: command, Stdin: stdin, Stdout: stdout, Stderr: stderr,
			}.Run(ctx, clients)
		},
		Forward: func(ctx context.Context, pod Pod, port int) (net.Conn, error) {
			return kube.DialPod(ctx, clients, clients.Namespace, pod.Name, port)
		},
	}
}

// Agents are temporary agents, one in each pod.
type Agents struct {
	Cluster Cluster
	Pods    []Pod
	// Agent is a file with the agent's program, "" for the one next to this program.
	Agent string
	// Idle is how long an agent runs without a request.
	Idle time.Duration
	// Folders are candidates for the agent's folder, nil for the usual ones. The first one that allows writing and running is
	// used.
	Folders []string

	name  string
	nodes nodes.Set
	// requests are those under which the agents run; stop, nil before Start, ends them.
	requests sync.WaitGroup
	stop     context.CancelFunc
}

type order struct {
	Do           string            `json:"do"`
	Folders      []string          `json:"folders"`
	Mounts       bool              `json:"mounts"`
	Seconds      float64           `json:"seconds"`
	Bytes        int               `json:"bytes"`
	Certificates map[string]string `json:"certificates,omitempty"`
	Arguments    []string          `json:"arguments,omitempty"`
}

func (g *Agents) newOrder(do string, bound time.Duration) order {
	o := order{Do: do, Folders: g.Folders, Seconds: bound.Seconds()}
	if o.Folders == nil {
		// The name of an unset variable stays as it is, and is no folder.
		o.Folders, o.Mounts = []string{"$TMPDIR", "/tmp", "/var/tmp", "/dev/shm", "$HOME"}, true
	}
	return o
}

func (g *Agents) run(ctx context.Context, i int, o order, program []byte, stdout io.Writer) error {
	line, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding an order: %w", err)
	}
	stdin := io.MultiReader(strings.NewReader(fmt.Sprintf("%d\n%s%s\n", len(helper), helper, line)), bytes.NewReader(program))
	var stderr tail
	err = g.Cluster.Exec(ctx, g.Pods[i], []string{"python3", "-B", "-c", loader, g.folder(i)}, stdin, stdout, &stderr)
	if err == nil || stderr.String() == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, stderr.String())
}

// folder is the name of an agent's folder. Pods may share its volume.
func (g *Agents) folder(i int) string { return fmt.Sprintf("%s-%d", g.name, i) }

// Start copies an agent into each pod, runs it, and waits until all answer. The caller must call Remove, also after an error.
// Errors: InvalidInput with everything that the pods lack, ContainerFailed, PermissionDenied, AgentUnreachable.
func (g *Agents) Start(ctx context.Context) (nodes.Set, error) {
	g.name = "mlenv-guest-" + strings.ToLower(rand.Text()[:10])
	machines, err := g.inspect(ctx)
	if err != nil {
		return nil, err
	}
	programs := map[string][]byte{}
	for _, machine := range machines {
		if programs[machine] != nil {
			continue
		}
		if programs[machine], err = readProgram(g.Agent, machine); err != nil {
			return nil, err
		}
	}
	// The keys exist for this check alone.
	made, err := certs.New("", "guest", time.Now())
	if err != nil {
		return nil, err
	}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"ca.crt": string(made.CA), "tls.crt": string(made.ServerCert), "tls.key": string(made.ServerKey)}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = stop
	ports := make([]int, len(g.Pods))
	err = g.each(func(i int) (err error) {
		o := g.newOrder("start", startTimeout)
		o.Bytes, o.Certificates, o.Arguments = len(programs[machines[i]]), files, g.arguments(i)
		ports[i], err = g.startAgent(ctx, running, i, o, programs[machines[i]])
		return err
	})
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, node int) (net.Conn, error) {
		return g.Cluster.Forward(ctx, g.Pods[node], ports[node])
	}
	for i := range g.Pods {
		g.nodes = append(g.nodes, agent.NewClient(i, "localhost", credentials, dial))
	}
	g.keepAlive(running)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return g.nodes, g.nodes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return nodes.Retry(ctx, func() error {
			_, err := client.Health(ctx)
			return err
		})
	})
}

func (g *Agents) arguments(i int) []string {
	var addresses []string
	for _, pod := range g.Pods {
		addresses = append(addresses, pod.IP)
	}
	return []string{
		"--addresses=" + strings.Join(addresses, ","), fmt.Sprintf("--node=%d", i), fmt.Sprintf("--gpus=%d", g.Pods[i].GPUs), "--pod=" + g.Pods[i].Name,
		"--kubernetes-node=" + g.Pods[i].Node, "--idle=" + g.Idle.String(),
	}
}

func (g *Agents) each(f func(i int) error) error {
	errs := make([]error, len(g.Pods))
	var group sync.WaitGroup
	for i := range g.Pods {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// inspect checks the containers for Python and torch, and returns their processors.
func (g *Agents) inspect(ctx context.Context) (machines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	machines = make([]string, len(g.Pods))
	return machines, g.each(func(i int) error {
		var out bytes.Buffer
		pod := g.Pods[i]
		if err := g.run(ctx, i, g.newOrder("look", 0), nil, &out); err != nil {
			return noPython(pod, err)
		}
		var container struct {
			Machine string
			Torch   bool
		}
		if err := json.Unmarshal(out.Bytes(), &container); err != nil {
			return fail.Becausef(fail.ContainerFailed, "looking at pod %s: python3 in container %s answers %q: %w", pod.Name, pod.Container, out.String(), err)
		}
		if !container.Torch {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "looking at pod %s: python3 in container %s has no torch, which measures: want a training image", pod.Name, pod.Container),
				"choose a container that has it by --container, or put its Python first in the container's PATH")
		}
		machines[i] = container.Machine
		return nil
	})
}

func noPython(pod Pod, err error) error {
	if fail.ReasonOf(err) == fail.PermissionDenied || errors.Is(err, context.Canceled) {
		return err
	}
	const notExecutable, notFound = 126, 127
	var exited *kube.ExitError
	if errors.As(err, &exited) && (exited.Code == notExecutable || exited.Code == notFound) || strings.Contains(err.Error(), "executable file") {
		return fail.Advise(fail.Becausef(fail.InvalidInput, "looking at pod %s: container %s has no python3 in its PATH, which measures: want a training image", pod.Name, pod.Container),
			"choose a container that has it by --container")
	}
	return fail.Advise(fail.Becausef(fail.ContainerFailed, "looking at pod %s: %w", pod.Name, err), "oc describe pod %s", pod.Name)
}

// startAgent starts an agent and returns its port. The request lasts as long as the agent, so that the container's runtime
// collects it; an agent survives the end of the request.
func (g *Agents) startAgent(ctx, running context.Context, i int, o order, program []byte) (port int, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	running, stop := context.WithCancel(running)
	defer context.AfterFunc(ctx, stop)()
	out, in := io.Pipe()
	g.requests.Go(func() {
		defer stop()
		in.CloseWithError(g.run(running, i, o, program, in))
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var answer struct {
		agent.Endpoint
		Problems []string
	}
	if json.Unmarshal(line, &answer) == nil && answer.Port > 0 {
		go discard(out)
		return answer.Port, nil
	}
	pod := g.Pods[i]
	if answer.Problems != nil {
		go discard(out)
		return 0, fail.Advise(fail.Becausef(fail.ContainerFailed, "starting the agent in pod %s: container %s has no folder that can be written and run from: %s",
			pod.Name, pod.Container, strings.Join(answer.Problems, "; ")), "mount an emptyDir at /tmp")
	}
	if err == nil {
		_, err = io.Copy(io.Discard, out)
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil, err == io.EOF: //nolint:errorlint // the pipe's own end; one that is wrapped is the request's
		err = fmt.Errorf("it printed %q: want its port", line)
	}
	return 0, fail.Advise(fail.Becausef(fail.ContainerFailed, "starting the agent in pod %s: %w", pod.Name, err), "oc describe pod %s", pod.Name)
}

// discard reads the rest of the output, which ends with the request.
func discard(out io.Reader) { _, _ = io.Copy(io.Discard, out) }

func (g *Agents) keepAlive(ctx context.Context) {
	for _, client := range g.nodes {
		go func() {
			for ticks := time.Tick(g.Idle / 4); ; {
				select {
				case <-ticks:
					// The check itself finds errors.
					_, _ = client.Health(ctx)
				case <-ctx.Done():
					return
				}
			}
		}()
	}
}

// Started reports whether Start copied anything into the pods.
func (g *Agents) Started() bool { return g.stop != nil }

// Remove ends the agents and deletes their files, also after the end of ctx and whatever Start returned. Error:
// TeardownIncomplete with what is left in each pod.
func (g *Agents) Remove(ctx context.Context) error {
	if !g.Started() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	err := g.each(func(i int) error { return g.remove(ctx, i) })
	g.stop()
	g.nodes.Close()
	g.requests.Wait()
	return err
}

func (g *Agents) remove(ctx context.Context, i int) error {
	var out bytes.Buffer
	err := g.run(ctx, i, g.newOrder("remove", stopTimeout), nil, &out)
	var left struct {
		Processes []int
		Folders   []string
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &left)
	}
	if err == nil {
		if len(left.Processes)+len(left.Folders) == 0 {
			return nil
		}
		err = fmt.Errorf("processes %v and folders %v are left", left.Processes, left.Folders)
	}
	return fail.Advise(fail.Becausef(fail.TeardownIncomplete, "removing the agent from pod %s: %w", g.Pods[i].Name, err),
		"it ends and removes itself after %s without a request; its folder is named %s", g.Idle, g.folder(i))
}

// Hosts are the addresses of the pods, as in URLs.
func (g *Agents) Hosts() (hosts []string) {
	for _, pod := range g.Pods {
		host := pod.IP
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// Together are the names of pods that share a node, by node: the network is not between them.
func Together(pods []Pod) map[string][]string {
	on := map[string][]string{}
	for _, pod := range pods {
		on[pod.Node] = append(on[pod.Node], pod.Name)
	}
	maps.DeleteFunc(on, func(_ string, names []string) bool { return len(names) < 2 })
	return on
}

// tail keeps the last line of its input, which is the error of a Python program.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 4096
	t.text = append(t.text, p...)
	t.text = slices.Clone(t.text[max(0, len(t.text)-most):])
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}
