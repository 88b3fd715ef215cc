// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const (
	// allNodes is the value of --node for all of them.
	allNodes = -1
	// sshMark begins the configurations that mlenv may replace.
	sshMark = "# Written by mlenv ssh-config"
	// sshInclude is the line by which ssh reads them.
	sshInclude = "Include mlenv/*.conf"
	// proxyCommand is the command by which ssh connects.
	proxyCommand = "ssh-proxy"
	// mostConfig is the size of an ssh configuration that mlenv reads.
	mostConfig = 1 << 20
)

type sshConfig struct {
	envflags.Flags
	node  int
	write bool
}

func sshConfigCommand() *cobra.Command {
	s := sshConfig{node: allNodes}
	cmd := &cobra.Command{
		Use:   "ssh-config [ENVIRONMENT]",
		Short: "Print the configuration with which ssh, scp, sftp and rsync reach the nodes",
		Long: `Print an OpenSSH configuration in which node N of a kept environment is host mlenv-ENVIRONMENT-N, for ssh, scp, sftp, rsync,
and editors that use them. Connections go through the API server with your own rights, and end in the node's agent: the
image needs no sshd. rsync must be in the image. A command runs in the environment and folder of mlenv shell, and
ends within a minute after the connection is lost. ssh -L leads to ports of the node itself, and to no other host.

mlenv creates a key for the environment, which stays on this machine, and knows the node's host key from its agent.
--write writes ~/.ssh/mlenv/ENVIRONMENT.conf, which ssh reads by the line "Include mlenv/*.conf" at the top of
~/.ssh/config. mlenv creates that file, and does not change one that exists: it prints the line.

Exit code 0: done; 1: the nodes cannot be reached, or a file is not mlenv's; 2: wrong usage.`,
		Example: `  mlenv ssh-config --write && ssh mlenv-ml-dev-env-0
  mlenv ssh-config h-kim --node=1 >config && scp -F config mlenv-h-kim-1:/workspace/result.pt .`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(envflags.ParseName(cmd.Flags(), args),
				command.Want(s.node >= allNodes, "--node %d: want its number in the environment, 0 and up", s.node))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), command.TextLog(cmd.ErrOrStderr()), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	s.AddTo(flags, envflags.OnlyNamespace)
	flags.IntVar(&s.node, "node", allNodes, "number of the only node in the configuration; -1: all nodes")
	flags.BoolVar(&s.write, "write", false, "write the configuration below ~/.ssh instead of printing it")
	return cmd
}

func (s *sshConfig) run(ctx context.Context, log *slog.Logger, out io.Writer) error {
	clients, set, detach, err := attach(ctx, &s.Flags, log)
	if err != nil {
		return err
	}
	defer detach()
	nodes := set
	if s.node != allNodes {
		if s.node >= len(set) {
			return noNode(clients, s.Environment, s.node, len(set))
		}
		nodes = set[s.node : s.node+1]
	}
	files, err := newSSHFiles(clients, s.Environment)
	if err != nil {
		return err
	}
	proxy, err := s.proxy(clients)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s: environment %s/%s at %s\n", sshMark, clients.Namespace, s.Environment, clients.Config.Host)
	for _, client := range nodes {
		if _, err := files.allowKey(ctx, client); err != nil {
			return err
		}
		text += files.hostEntry(client.Node(), proxy)
	}
	if !s.write {
		_, err := io.WriteString(out, text)
		return err
	}
	return writeSSHConfig(log, s.Environment, text)
}

func noNode(clients *kube.Clients, environment string, node, nodes int) error {
	return fail.Becausef(fail.InvalidInput, "node %d: environment %s/%s has nodes 0 to %d", node, clients.Namespace, environment, nodes-1)
}

// proxy returns the command line, without the node, that leads to the same environment and key from any folder, terminal and editor.
func (s *sshConfig) proxy(clients *kube.Clients) (words []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	words = []string{self, proxyCommand, "--" + envflags.NameFlag + "=" + s.Environment, "--namespace=" + clients.Namespace}
	var variables []string
	if state := os.Getenv(stateVariable); state != "" {
		variables = append(variables, stateVariable+"="+state)
	}
	if !clients.InCluster {
		of, kubeconfig, err := s.Kube.Arguments()
		if err != nil {
			return nil, err
		}
		words = append(words, of...)
		if kubeconfig != "" {
			variables = append(variables, kubeconfig)
		}
	}
	if len(variables) > 0 {
		words = slices.Concat([]string{"env"}, variables, words)
	}
	return words, nil
}

// writeSSHConfig writes the configuration of an environment below ~/.ssh. It changes no file that mlenv has not written.
func writeSSHConfig(log *slog.Logger, environment, text string) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	user := filepath.Join(home, ".ssh", "config")
	path := filepath.Join(home, ".ssh", "mlenv", environment+".conf")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	title, _, _ := strings.Cut(text, "\n")
	switch written, err := claimfile.Read(path, mostConfig); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !strings.HasPrefix(string(written), sshMark):
		return fail.Advise(fail.Becausef(fail.InvalidInput, "writing %s: it has another author; want a file that begins with %q", path, sshMark),
			"mv %s %s.mine", path, strings.TrimSuffix(path, ".conf"))
	case !strings.HasPrefix(string(written), title+"\n"):
		other, _, _ := strings.Cut(string(written), "\n")
		return fail.Advise(fail.Becausef(fail.InvalidInput, "writing %s: it is for another environment of that name (%s): want one host of a "+
			"name in ssh", path, strings.TrimPrefix(other, sshMark+": ")),
			"mlenv ssh-config %s >FILE && ssh -F FILE mlenv-%[1]s-0; or, if the other one is not needed: rm %[2]s", environment, path)
	}
	if err := writePrivate(path, []byte(text), os.Rename); err != nil {
		return err
	}
	log.Info("Written: " + path)
	included, err := includes(user)
	if err == nil && !included {
		log.Warn(fmt.Sprintf("ssh does not read it yet: add this line at the top of %s, before any Host: %s", user, sshInclude))
	}
	return err
}

// includes reports whether the user's configuration includes mlenv's files, and creates it if it does not exist.
func includes(user string) (bool, error) {
	file, err := claimfile.OpenFile(user, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.WriteString(file, sshInclude+"\n")
		return true, errors.Join(err, file.Close())
	}
	content, err := os.ReadFile(user) //nolint:forbidigo // the user's own, and often a link
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(strings.Split(string(content), "\n"), func(line string) bool {
		words := strings.Fields(line)
		return len(words) > 1 && strings.EqualFold(words[0], "include") && slices.ContainsFunc(words[1:], func(word string) bool {
			return strings.HasSuffix(strings.Trim(word, `"`), "mlenv/*.conf")
		})
	}), nil
}

// sshProxyCommand returns what ssh runs to connect.
func sshProxyCommand() *cobra.Command {
	var flags envflags.Flags
	var node int
	cmd := &cobra.Command{
		Use:    proxyCommand + " NODE",
		Short:  "Connect standard input and output to a node's ssh server, for the configuration of mlenv ssh-config",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				node, err = strconv.Atoi(args[0])
			}
			return command.Want(len(args) == 1 && err == nil && node >= 0, "arguments %q: want the number of a node", args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			// ssh ends this command. Ctrl-C is for ssh, or for what runs on the node.
			ctx, log := context.WithoutCancel(cmd.Context()), command.TextLog(cmd.ErrOrStderr())
			clients, set, detach, err := attach(ctx, &flags, log)
			if err != nil {
				return err
			}
			defer detach()
			if node >= len(set) {
				return noNode(clients, flags.Environment, node, len(set))
			}
			files, err := newSSHFiles(clients, flags.Environment)
			if err != nil {
				return err
			}
			// Before ssh reads the host key: it waits for the server's first line.
			server, err := files.allowKey(ctx, set[node])
			if err != nil {
				return err
			}
			conn, err := env.Of(clients, flags.Environment).Forward(ctx, node, server.Port)
			if err != nil {
				return err
			}
			return pipe(conn, cmd.InOrStdin(), command.Unfiltered(cmd.OutOrStdout()))
		},
	}
	flags.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	return cmd
}

// pipe connects a program's input and output with a connection until either ends.
func pipe(conn net.Conn, in io.Reader, out io.Writer) error {
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, in)
		conn.Close()
	}()
	if _, err := io.Copy(out, conn); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}
