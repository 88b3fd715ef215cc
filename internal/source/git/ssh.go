package git

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// dialSSH logs in at the address's host. The connection ends with the context.
// It fails if the server sends nothing for too long.
func dialSSH(ctx context.Context, a address, keys keyring, silence time.Duration) (*ssh.Client, error) {
	config, err := sshConfig(a, keys)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: 30 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", a.dial())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	secure, channels, requests, err := ssh.NewClientConn(&patientConn{conn, silence}, a.dial(), config)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ssh.NewClient(secure, channels, requests), nil
}

// patientConn is a connection whose other side may be silent for so long.
type patientConn struct {
	net.Conn
	silence time.Duration
}

func (c *patientConn) Read(b []byte) (int, error) {
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
	signer, ok := keys.signer(a.host)
	if !ok {
		return nil, noKey(a, keys)
	}
	known, err := knownhosts.New(keys.auth.knownHosts)
	if err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading git secret: known_hosts: %w", err)
	}
	user := a.user
	if user == "" {
		user = "git"
	}
	algorithms, err := hostKeyAlgorithms(keys.auth.knownHosts, known, a)
	if err != nil {
		return nil, err
	}
	return &ssh.ClientConfig{
		User:              user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
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

// keyscan is how to get the host's key.
func keyscan(a address) string {
	port := ""
	if a.port != "" && a.port != "22" {
		port = "-p " + a.port + " "
	}
	return fmt.Sprintf("ssh-keyscan %s%s >known_hosts   # compare ssh-keygen -lf known_hosts with what the server's owner publishes, then add the file to the git secret as known_hosts", port, a.host)
}

// checkHostKey explains what the check of a key said.
func checkHostKey(err error, a address, key ssh.PublicKey) error {
	if err == nil {
		return nil
	}
	seen := fmt.Sprintf("%s %s", key.Type(), ssh.FingerprintSHA256(key))
	var other *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		err = fail.Becausef(fail.HostKeyUnknown, "checking host key of %s: %s: known_hosts says that it is revoked", a.host, seen)
	case errors.As(err, &other) && len(other.Want) > 0:
		want := make([]string, len(other.Want))
		for i, k := range other.Want {
			want[i] = k.Key.Type() + " " + ssh.FingerprintSHA256(k.Key)
		}
		err = fail.Becausef(fail.HostKeyUnknown, "checking host key of %s: %s: want %s: the server has a new key, or somebody else answers in its place",
			a.host, seen, strings.Join(want, " or "))
	case errors.As(err, &other):
		err = fail.Becausef(fail.HostKeyUnknown, "checking host key of %s: %s: known_hosts has no key of this host", a.host, seen)
	default:
		err = fail.Becausef(fail.HostKeyUnknown, "checking host key of %s: %s: %w", a.host, seen, err)
	}
	return fail.Advise(err, "%s", keyscan(a))
}

// hostKeyAlgorithms are those of the known keys: a server that has several
// keys must show one that is known. They are nil, for all, where certificates may be used.
func hostKeyAlgorithms(file string, known ssh.HostKeyCallback, a address) ([]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(content), "@cert-authority") {
		return nil, nil
	}
	// A key that nobody has makes the check tell which it wants.
	nobody, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		return nil, err
	}
	var answer *knownhosts.KeyError
	if !errors.As(known(a.dial(), &net.TCPAddr{}, nobody), &answer) {
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

// tail keeps the last of what was written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	const kept = 4 << 10
	if over := len(t.text) - kept; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
