// SPDX-License-Identifier: Apache-2.0

//go:build linux

package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/facts"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// Environment is nodes on this machine.
type Environment struct {
	Run
	Nodes nodes.Set
	// GPUs is how many each node has.
	GPUs int
	// Program is the path of the agent's program.
	Program string
	// Workspace is the folder in place of the workspace claim.
	Workspace string

	options   Options
	addresses []net.IP
	// run is the scratch folder, which ends with the environment.
	run    string
	cancel context.CancelFunc
	served []chan error
	logs   []io.Closer
	lock   *os.File
}

// Start starts the agents. They, and all processes of their jobs, end with End, and with this process, whatever ends it.
// Errors: InvalidInput.
func Start(ctx context.Context, o Options) (*Environment, error) {
	environ, err := ranksEnviron(o.Environ, o.Python)
	if err != nil {
		return nil, err
	}
	gpus, err := divided(ctx, o)
	if err != nil {
		return nil, err
	}
	e := &Environment{Run: Run{Folder: o.Folder, Name: o.Name}, GPUs: len(gpus[0]), Workspace: o.Folder, options: o}
	if err := e.claimName(); err != nil {
		return nil, err
	}
	// An interrupted command still asks the nodes how its job ends.
	ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if e.run, err = claimfile.MkdirTemp("", scratchPrefix); err == nil {
		_, err = fmt.Fprintf(e.lock, "%s\n%s\n", e.run, hostname())
	}
	if err != nil {
		err = fmt.Errorf("creating a folder for the sockets of the nodes: %w", err)
	} else {
		err = e.start(ctx, environ, gpus)
	}
	if err != nil {
		return nil, errors.Join(err, e.Shutdown(), claimfile.RemoveFolder(e.Dir()), e.Unlock())
	}
	return e, nil
}

// claimName creates the run's folder, which no other one may have, with the lock that shows that the run is in progress.
func (e *Environment) claimName() error {
	parent, private := filepath.Dir(e.Dir()), e.options.Folder
	// Trees, working directories and virtual environments below it are writable for the group, as the pods of a cluster need them.
	if err := errors.Join(os.MkdirAll(private, 0o700), os.Chmod(private, 0o700), os.MkdirAll(parent, 0o755),
		os.MkdirAll(e.datasets(), 0o755)); err != nil {
		return fmt.Errorf("creating a folder for local runs: %w", err)
	}
	// The folder gets its name when the lock is held: without a lock it would count as the folder of a run that was killed.
	begun, err := os.MkdirTemp(parent, ".new-")
	if err == nil {
		e.lock, err = lockFile(filepath.Join(begun, lockName))
	}
	if err != nil {
		return fmt.Errorf("creating the folder of run %s: %w", e.Name, errors.Join(err, claimfile.RemoveAll(parent, begun)))
	}
	err = os.Rename(begun, e.Dir())
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		err = fail.Becausef(fail.InvalidInput, "starting run %s on this machine: there is one of that name; want another --run-name", e.Name)
	}
	return errors.Join(err, claimfile.RemoveAll(parent, begun), e.Unlock())
}

// Adopt moves a temporary folder to where it ends with the environment, whatever ends it, and returns its new path.
func (e *Environment) Adopt(folder string) string {
	adopted := filepath.Join(e.run, "source")
	if err := os.Rename(folder, adopted); err != nil {
		return folder // on another volume; its own process deletes it
	}
	return adopted
}

// Unlock ends the run for other processes. The receipt must be there.
func (e *Environment) Unlock() error { return e.lock.Close() }

// Shutdown ends all jobs and the agents.
func (e *Environment) Shutdown() error {
	e.Nodes.Close()
	e.cancel()
	var errs []error
	for _, served := range e.served {
		errs = append(errs, <-served)
	}
	for _, log := range e.logs {
		errs = append(errs, log.Close())
	}
	if e.run != "" {
		errs = append(errs, claimfile.RemoveFolder(e.run))
	}
	return errors.Join(append(errs, claimfile.RemoveFolder(e.own()))...)
}

func (e *Environment) start(ctx context.Context, environ []string, gpus [][]string) error {
	if err := e.makeProgram(); err != nil {
		return err
	}
	e.addresses = addressesOf(e.options.Nodes)
	made, err := certs.New("local", e.options.Name, time.Now(), false, e.addresses...)
	if err != nil {
		return err
	}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	if err != nil {
		return err
	}
	var ports []string
	dial := func(ctx context.Context, node int) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", ports[node])
	}
	var listeners []net.Listener
	for _, address := range e.addresses {
		listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		if err != nil {
			return fmt.Errorf("listening for node %d: %w", len(listeners), err)
		}
		listeners, ports = append(listeners, listener), append(ports, listener.Addr().String())
	}
	for node, listener := range listeners {
		config := e.config(node, environ, gpus[node])
		config.Dial = dial
		if err := errors.Join(writeTLS(filepath.Join(config.Paths.Home, "tls"), made.CA, made.ServerCert, made.ServerKey),
			linkSpy(config.Paths.Home, environ)); err != nil {
			return err
		}
		if err := e.serve(ctx, config, listener); err != nil {
			return err
		}
		e.Nodes = append(e.Nodes, agent.NewClient(node, config.Host(node), credentials, dial))
	}
	tls := filepath.Join(e.run, "client")
	content, err := json.Marshal(reach{Addresses: ports, TLS: tls})
	if err == nil {
		err = writeTLS(tls, made.CA, made.ClientCert, made.ClientKey)
	}
	if err != nil {
		return err
	}
	return claimfile.Replace(e.path(reachName), e.Dir(), content)
}

// writeTLS writes certificates and a key for this user alone.
func writeTLS(folder string, ca, cert, key []byte) error {
	err := os.MkdirAll(folder, 0o700)
	for name, content := range map[string][]byte{"ca.crt": ca, "tls.crt": cert, "tls.key": key} {
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	return err
}

// linkSpy gives a node the py-spy in PATH, if there is one.
func linkSpy(home string, environ []string) error {
	path, _ := agent.Variable(environ, "PATH")
	spy, err := agent.FindProgram(agent.PySpy, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		spy, err = filepath.Abs(spy)
	}
	bin := filepath.Join(home, "bin")
	return errors.Join(err, os.MkdirAll(bin, 0o700), os.Symlink(spy, filepath.Join(bin, agent.PySpy)))
}

// pod returns the name of a node.
func (e *Environment) pod(node int) string { return e.Name + "-" + strconv.Itoa(node) }

// makeProgram links this program under the name of the agent's. Main of package program runs it.
func (e *Environment) makeProgram() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	e.Program = filepath.Join(e.run, agent.ProgramName)
	return os.Symlink(self, e.Program)
}

// FreePort returns a port that nothing on this machine uses. torch's store listens at all addresses of its machine.
func FreePort() (int, error) {
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// addressesOf returns loopback addresses for the nodes.
func addressesOf(count int) (addresses []net.IP) {
	second, third := byte(1+rand.IntN(254)), byte(rand.IntN(256))
	for node := range count {
		addresses = append(addresses, net.IPv4(127, second, third, byte(1+node)))
	}
	return addresses
}

// noGPU is the list of a node without GPUs: it names none of this machine's, so the agent hides all from the ranks.
const noGPU = "GPU-none"

func (e *Environment) config(node int, environ, gpus []string) server.Config {
	o := e.options
	name := e.pod(node)
	c := server.Config{
		Version: version.String(), Name: o.Name, Node: node, Nodes: o.Nodes, GPUs: len(gpus), Pod: name, Local: true,
		PodIP: e.TLSName(node), Program: e.Program, Environ: environ,
		Paths: server.Paths{
			Workspace: o.Folder, Datasets: e.datasets(), Home: filepath.Join(e.run, name), Sys: facts.OwnCgroup(),
			Own: e.own(),
		},
	}
	c.Public, c.Loopback = c.PodIP, c.PodIP
	for node := range e.addresses {
		c.Addresses = append(c.Addresses, e.TLSName(node))
	}
	c.KubernetesNode, _ = os.Hostname()
	c.Environ = append(slices.Clip(c.Environ), facts.VisibleDevices+"="+cmp.Or(strings.Join(gpus, ","), noGPU))
	return c
}

// datasets returns the folder in place of the claim for datasets.
func (e *Environment) datasets() string { return filepath.Join(e.options.Folder, "datasets") }

// logOf returns the path of the log of a node's agent.
func (e *Environment) logOf(node int) string {
	return e.path(fmt.Sprintf("agent-%d.log", node))
}

func (e *Environment) serve(ctx context.Context, c server.Config, listener net.Listener) error {
	log, err := claimfile.Append(e.logOf(c.Node))
	if err != nil {
		return err
	}
	e.logs = append(e.logs, log)
	s, err := server.New(c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeOn(ctx, listener) }()
	e.served = append(e.served, served)
	return nil
}
