package program

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/version"
)

// guest is a temporary agent, on loopback and a free port. It ends on a signal or after a while without a request, and leaves no
// process and no file: it writes into its folder alone.
func guest(args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mlenv-agent guest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "the agent's folder, with its certificates in tls/: removed at the end")
	addresses := flags.String("addresses", "", "comma-separated addresses of all nodes")
	node := flags.Int("node", 0, "index of this node among them, from 0")
	gpus := flags.Int("gpus", 0, "number of GPUs of the container")
	pod := flags.String("pod", "", "name of the pod")
	kubernetesNode := flags.String("kubernetes-node", "", "name of its Kubernetes node")
	idle := flags.Duration("idle", 2*time.Minute, "time without a request after which it ends")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	all := strings.Split(*addresses, ",")
	if *dir == "" || *node < 0 || *node >= len(all) || *idle <= 0 || flags.NArg() > 0 {
		fmt.Fprintln(stderr, "mlenv-agent guest: want --dir, an address for each node in --addresses, --node among them, --idle above 0, and no arguments")
		return 2
	}
	config := server.Config{
		Version: version.String(), Name: "guest", Node: *node, Nodes: len(all), GPUs: *gpus, Addresses: all, Guest: true, Idle: *idle,
		Pod: *pod, KubernetesNode: *kubernetesNode, PodIP: all[*node], Public: "127.0.0.1", Loopback: "127.0.0.1",
		Program: filepath.Join(*dir, "mlenv-agent"),
		Paths:   server.Paths{Workspace: filepath.Join(*dir, "workspace"), Datasets: *dir, Home: *dir, Sys: server.DefaultPaths().Sys},
		// Python and CUDA write nothing outside.
		Environ: append(environ, "PYTHONDONTWRITEBYTECODE=1", "CUDA_CACHE_PATH="+filepath.Join(*dir, "cuda")),
	}
	err := serveGuest(config, stdout)
	if err = errors.Join(err, os.RemoveAll(*dir)); err != nil {
		fmt.Fprintln(stderr, "mlenv-agent:", err)
		return 1
	}
	return 0
}

func serveGuest(config server.Config, stdout io.Writer) error {
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	if err := server.Adopt(); err != nil {
		return fmt.Errorf("adopting orphans: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		server.EndChildren(ctx)
	}()
	go server.Reap(ctx)
	// The reader of stdout may be gone, and writing to a closed pipe would end the agent.
	log, err := claimfile.Append(filepath.Join(config.Paths.Home, "agent.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s, err := server.New(config, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(config.Loopback, "0"))
	if err != nil {
		return fmt.Errorf("listening on loopback: %w", err)
	}
	address, _ := listener.Addr().(*net.TCPAddr) // of every listener for tcp
	if err := json.NewEncoder(stdout).Encode(agent.Endpoint{Port: address.Port}); err != nil {
		return err
	}
	return s.ServeOn(ctx, listener)
}
