// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// stateVariable names the folder of what programs keep on a machine.
const stateVariable = "XDG_STATE_HOME"

// sshFiles are the key of a user for one environment, and the host keys of its nodes, in a folder of this machine.
type sshFiles struct{ environment, dir string }

// newSSHFiles returns the files of an environment. Another one of the same name, in another namespace or cluster, has a folder of its own.
func newSSHFiles(clients *kube.Clients, environment string) (f sshFiles, err error) {
	state := os.Getenv(stateVariable)
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return f, err
		}
		state = filepath.Join(home, ".local", "state")
	}
	folder := strings.TrimSuffix(env.Of(clients, environment).LocalHost(clients.Config.Host), ".localhost")
	f = sshFiles{environment, filepath.Join(state, "mlenv", "ssh", folder)}
	if strings.ContainsAny(f.dir, "\"\\$\n") || !filepath.IsAbs(f.dir) {
		return f, fail.Becausef(fail.InvalidInput, "%s: folder for ssh keys %s: want an absolute path without quotes, backslashes and $",
			stateVariable, f.dir)
	}
	return f, os.MkdirAll(f.dir, 0o700)
}

func (f sshFiles) host(node int) string { return fmt.Sprintf("mlenv-%s-%d", f.environment, node) }
func (f sshFiles) knownHosts(node int) string {
	return filepath.Join(f.dir, "known_hosts-"+strconv.Itoa(node))
}
func (f sshFiles) keyFile() string { return filepath.Join(f.dir, "id_ed25519") }

// allowKey lets this machine's key connect to a node during the next minute, and writes down the node's host key. Both go over the
// connection on which the agent and mlenv know each other by their certificates.
func (f sshFiles) allowKey(ctx context.Context, client *agent.Client) (agent.SSHServer, error) {
	key, err := f.key()
	if err != nil {
		return agent.SSHServer{}, err
	}
	server, err := client.AllowSSH(ctx, string(ssh.MarshalAuthorizedKey(key)))
	if err != nil {
		return server, err
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	if err != nil {
		return server, fmt.Errorf("reading the host key of node %d: %w", client.Node(), err)
	}
	line := f.host(client.Node()) + " " + string(ssh.MarshalAuthorizedKey(host))
	return server, writePrivate(f.knownHosts(client.Node()), []byte(line), os.Rename)
}

// key returns the public part of the environment's key, which it creates.
func (f sshFiles) key() (ssh.PublicKey, error) {
	content, err := claimfile.Read(f.keyFile(), mostConfig)
	if errors.Is(err, fs.ErrNotExist) {
		content, err = f.newKey()
	}
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(content)
	if err != nil {
		return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "reading %s: %w", f.keyFile(), err), "rm '%s'", f.keyFile())
	}
	return signer.PublicKey(), nil
}

func (f sshFiles) newKey() ([]byte, error) {
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(secret, "mlenv "+f.environment)
	if err != nil {
		return nil, err
	}
	content := pem.EncodeToMemory(block)
	err = writePrivate(f.keyFile(), content, os.Link)
	if errors.Is(err, fs.ErrExist) { // another mlenv was first
		return claimfile.Read(f.keyFile(), mostConfig)
	}
	return content, err
}

// writePrivate writes a file that only this user may read, in one step, by os.Rename or, if none may exist, by os.Link: several ssh may
// read it meanwhile.
func writePrivate(path string, content []byte, place func(from, to string) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = place(file.Name(), path)
	}
	_ = os.Remove(file.Name()) // unless it was renamed
	return err
}

// hostEntry returns the configuration of a node. proxy is the command line that leads to the environment.
func (f sshFiles) hostEntry(node int, proxy []string) string {
	words := make([]string, 0, len(proxy)+1)
	for _, word := range append(proxy[:len(proxy):len(proxy)], strconv.Itoa(node)) {
		words = append(words, quoted(word))
	}
	// ssh replaces what begins with %.
	percent := strings.NewReplacer("%", "%%")
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("Host %s", f.host(node))
	line("    HostKeyAlias %s", f.host(node))
	line("    User mlenv")
	line("    ProxyCommand %s", percent.Replace(strings.Join(words, " ")))
	line("    IdentityFile \"%s\"", percent.Replace(f.keyFile()))
	line("    IdentitiesOnly yes")
	line("    UserKnownHostsFile \"%s\"", percent.Replace(f.knownHosts(node)))
	line("    GlobalKnownHostsFile /dev/null")
	line("    StrictHostKeyChecking yes")
	line("    ServerAliveInterval 15")
	return text.String()
}

// quoted returns a word of a shell's command line.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@+,", r)
	}
	if word != "" && strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
