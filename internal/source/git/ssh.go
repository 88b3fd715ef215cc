// SPDX-License-Identifier: Apache-2.0

package git

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// dialSSH logs in at the address's host. The connection closes when the context ends, and fails if the server sends
// nothing for too long.
func dialSSH(ctx context.Context, a address, keys keyring, silence time.Duration) (*ssh.Client, error) {
	config, err := sshConfig(a, keys)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: 30 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", a.hostPort())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	secure, channels, requests, err := ssh.NewClientConn(&silenceConn{conn, silence}, a.hostPort(), config)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ssh.NewClient(secure, channels, requests), nil
}

type silenceConn struct {
	net.Conn
	silence time.Duration
}

func (c *silenceConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func sshConfig(a address, keys keyring) (*ssh.ClientConfig, error) {
	if keys.auth.knownHosts == "" {
		return nil, fail.Advise(
			fail.Becausef(fail.HostKeyUnknown, "connecting to %s: no known_hosts to check its host key with: want one in the git secret", a.host),
			"%s", keyscan(a))
	}
	if keys.auth.key == nil || !strings.EqualFold(a.host, keys.home.host) {
		return nil, noKey(a, keys)
	}
	known, err := knownhosts.New(keys.auth.knownHosts)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading git secret: known_hosts: %w", err)
	}
	algorithms, err := hostKeyAlgorithms(keys.auth.knownHosts, known, a)
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User:              cmp.Or(a.user, "git"),
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(keys.auth.key)},
		ClientVersion:     "SSH-2.0-ml-dev-env",
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(host string, remote net.Addr, key ssh.PublicKey) error {
			return checkHostKey(known(host, remote, key), a, key)
		},
	}, nil
}

func noKey(a address, keys keyring) error {
	if keys.auth.key != nil {
		return fail.Advise(
			fail.Becausef(fail.RepositoryUnavailable, "connecting to %s: credentials are sent to %s only, and ssh needs a key", a, keys.home.host),
			"name the submodule in .gitmodules by a URL relative to its repository, or by https:// if it is public")
	}
	return fail.Advise(
		fail.Becausef(fail.RepositoryUnavailable, "connecting to %s: no ssh key: want ssh-privatekey in the git secret", a),
		"kubectl create secret generic git --from-file=ssh-privatekey=KEYFILE --from-file=known_hosts=known_hosts   # and pass it as git-secret")
}

func keyscan(a address) string {
	port := ""
	if a.port != "" && a.port != "22" {
		port = "-p " + a.port + " "
	}
	return fmt.Sprintf("ssh-keyscan %s%s >known_hosts   # compare ssh-keygen -lf known_hosts with what the server's owner publishes, then "+
		"add the file to the git secret as known_hosts", port, a.host)
}

func checkHostKey(err error, a address, key ssh.PublicKey) error {
	if err == nil {
		return nil
	}
	problem := err.Error()
	var other *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		problem = "known_hosts lists it as revoked"
	case errors.As(err, &other) && len(other.Want) > 0:
		want := make([]string, len(other.Want))
		for i, k := range other.Want {
			want[i] = k.Key.Type() + " " + ssh.FingerprintSHA256(k.Key)
		}
		problem = fmt.Sprintf("want %s: the server has a new key, or another server answers in its place", strings.Join(want, " or "))
	case errors.As(err, &other):
		problem = "known_hosts has no key of this host"
	}
	err = fail.Becausef(fail.HostKeyUnknown, "checking host key of %s: %s %s: %s", a.host, key.Type(), ssh.FingerprintSHA256(key), problem)
	return fail.Advise(err, "%s", keyscan(a))
}

// hostKeyAlgorithms returns the algorithms of the known keys, so that a server with several keys shows a known one. It
// returns nil, for all, if certificates may be used.
func hostKeyAlgorithms(file string, known ssh.HostKeyCallback, a address) ([]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(content), "@cert-authority") {
		return nil, nil
	}
	// The check of an unused key lists the known ones.
	unused, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		return nil, err
	}
	var answer *knownhosts.KeyError
	if !errors.As(known(a.hostPort(), &net.TCPAddr{}, unused), &answer) {
		return nil, nil
	}
	var algorithms []string
	for _, k := range answer.Want {
		if k.Key.Type() == ssh.KeyAlgoRSA {
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		algorithms = append(algorithms, k.Key.Type())
	}
	slices.Sort(algorithms)
	return slices.Compact(algorithms), nil
}
