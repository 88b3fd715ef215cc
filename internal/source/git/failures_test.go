// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestFetchUnavailableHTTPS(t *testing.T) {
	root := t.TempDir()
	commit(t, newRepository(t, root, "repo"), "first")
	server := newWebServer(t, root)
	good := server.goodAuth(t)
	page := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>\nSign in\n</html>\n"))
	}))
	defer page.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, proxy := range []string{"HTTPS_PROXY", "https_proxy"} { // which would look the name up
		t.Setenv(proxy, "")
	}
	for _, test := range []struct {
		name       string
		source     Source
		auth       Auth
		text, next string
	}{
		{"anonymous", server.source("repo", ""), server.auth(t, nil), "401 Unauthorized, and no credentials for this host were given",
			"--from-literal=token=TOKEN"},
		{"wrong token", server.source("repo", ""), server.auth(t, map[string]string{"username": testUser, "password": "wr0ng"}),
			"401 Unauthorized: no entry with *** to the given credentials", "has not expired"},
		{"no such repository", server.source("other", ""), good, "404 Not Found: no repository there that this user may see",
			"check the path in repo-url"},
		{"certificate", server.source("repo", ""), Auth{}, "the server's certificate is not trusted: ", "mlenv-trusted-ca"},
		{"no such host", Source{URL: "https://" + testUser + ":" + testToken + "@nowhere.invalid/repo"}, Auth{},
			"no address for the name nowhere.invalid", "getent hosts nowhere.invalid"},
		{"nobody listens", Source{URL: closed.URL + "/repo"}, Auth{}, "no connection: ", "check the host and port"},
		{"a page", Source{URL: page.URL + "/repo"}, good, "no git repository is served there", "git ls-remote"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.source.Auth = test.auth
			_, _, log, err := fetchInto(t, test.source)
			wantFailure(t, err, fail.RepositoryUnavailable, test.text, test.next)
			again := 0
			if test.name == "no such host" || test.name == "nobody listens" {
				again = usualLimits.retries
			}
			if told := strings.Count(log, "trying again"); told != again {
				t.Errorf("%d retries, want %d:\n%s", told, again, log)
			}
			for _, secret := range []string{testToken, "wr0ng"} {
				if strings.Contains(log, secret) || strings.Contains(err.Error(), secret) {
					t.Errorf("a secret is shown: %s\n%s", err, log)
				}
			}
		})
	}
}

func TestFetchUnavailableSSH(t *testing.T) {
	t.Setenv("HOME", "")
	root := t.TempDir()
	commit(t, newRepository(t, root, "repo"), "first")
	server := newSSHServer(t, root)
	_, otherKey := newKey(t)
	otherHost, _ := newKey(t)
	host, port, _ := net.SplitHostPort(server.address)
	scan := "ssh-keyscan -p " + port + " " + host + " >known_hosts"
	for _, test := range []struct {
		name       string
		repository string
		keys       map[string]string
		reason     fail.Reason
		text, next string
	}{
		{"no known hosts", "repo", map[string]string{"ssh-privatekey": server.clientKey}, fail.HostKeyUnknown,
			"no known_hosts to check its host key with", scan},
		{"other host known", "repo",
			map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": knownhosts.Line([]string{"elsewhere"}, server.hostKey.PublicKey())},
			fail.HostKeyUnknown, "known_hosts has no key of this host", scan},
		{"other key known", "repo", map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": knownhosts.Line([]string{server.address},
			otherHost.PublicKey())},
			fail.HostKeyUnknown, "the server has a new key, or another server answers in its place", scan},
		{"revoked", "repo", map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": "@revoked " + server.knownHosts()},
			fail.HostKeyUnknown, "as revoked", scan},
		{"no key", "repo", map[string]string{"known_hosts": server.knownHosts()}, fail.RepositoryUnavailable, "no ssh key: want ssh-privatekey",
			"--from-file=ssh-privatekey"},
		{"key refused", "repo", map[string]string{"ssh-privatekey": otherKey, "known_hosts": server.knownHosts()}, fail.RepositoryUnavailable,
			"the server does not accept the ssh key", "deploy key"},
		{"no such repository", "other", map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": server.knownHosts()},
			fail.RepositoryUnavailable, "does not appear to be a git repository", "check the path"},
		{"no known_hosts syntax", "repo", map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": "one two three four"},
			fail.InvalidInput, "known_hosts", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := server.source(test.repository, "")
			source.Auth = secret(t, test.keys)
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, test.reason, test.text, test.next)
		})
	}
}

// A server with several host keys must present the known one.
func TestFetchKnownHostKeyOfSeveral(t *testing.T) {
	root := t.TempDir()
	commit(t, newRepository(t, root, "repo"), "first")
	rsaKey := newRSAKey(t)
	server := newSSHServer(t, root, rsaKey)
	for name, line := range map[string]string{
		"ed25519": server.knownHosts(),
		"rsa":     knownhosts.Line([]string{server.address}, rsaKey.PublicKey()),
		"hashed":  knownhosts.HashHostname(knownhosts.Normalize(server.address)) + " " + strings.SplitN(server.knownHosts(), " ", 2)[1],
	} {
		t.Run(name, func(t *testing.T) {
			source := server.source("repo", "")
			source.Auth = secret(t, map[string]string{"ssh-privatekey": server.clientKey, "known_hosts": line})
			if _, _, _, err := fetchInto(t, source); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFetchUserInfoOfURL(t *testing.T) {
	root := t.TempDir()
	commit(t, newRepository(t, root, "repo"), "first")
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth = server.auth(t, nil)
	source.URL = strings.Replace(source.URL, "https://", "https://"+testUser+":"+testToken+"@", 1)
	_, _, log, err := fetchInto(t, source)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log, testToken) || strings.Contains(log, testUser) {
		t.Errorf("user info is shown:\n%s", log)
	}
}

// A cluster's DNS and its route to the server can fail briefly, before any command that needs the server.
func TestFetchAgainAfterMomentaryFailure(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	want := commit(t, repo, "first")
	server := newWebServer(t, root)
	server.open = true
	real, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	script := `#!/bin/sh
for command in ls-remote fetch; do
  for message in "Could not resolve host: git.example.com" "Failed to connect to git.example.com port 443: Connection refused"; do
    case " $* " in *" $command "*)
      done="` + bin + `/$command-${message%% *}"
      if [ ! -e "$done" ]; then
        : >"$done"
        echo "fatal: unable to access 'https://git.example.com/': $message" >&2
        exit 128
      fi
    esac
  done
done
exec ` + real + ` "$@"
`
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, got, log, err := fetchInto(t, Source{URL: server.URL + "/repo", Auth: server.goodAuth(t)})
	if err != nil || got != want {
		t.Errorf("got %s, %v: want %s", got, err, want)
	}
	if told := strings.Count(log, "cannot be reached; trying again in "); told != 4 {
		t.Errorf("%d retries in the log, want 4:\n%s", told, log)
	}
}

// If a server breaks off in the middle of a transfer, the fetch tries again.
func TestFetchBrokenOff(t *testing.T) {
	t.Setenv("HOME", "")
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	noise := make([]byte, 4<<20) // git cannot compress it
	_, _ = rand.Read(noise)
	put(t, repo, "noise", string(noise))
	want := commit(t, repo, "first")
	server := newWebServer(t, root)
	var broken atomic.Bool
	whole := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole.ServeHTTP(&cut{w, 1 << 20, &broken}, r)
	})
	source := server.source("repo", "")
	source.Auth = server.goodAuth(t)
	_, got, log, err := fetchInto(t, source)
	if err != nil || got != want {
		t.Errorf("got %s, %v: want %s", got, err, want)
	}
	if told := strings.Count(log, " broke off; trying again in "); told != 1 {
		t.Errorf("%d retries in the log, want 1:\n%s", told, log)
	}
}

// cut breaks off the first answer that is longer than left bytes.
type cut struct {
	http.ResponseWriter
	left   int
	broken *atomic.Bool
}

func (c *cut) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 && !c.broken.Swap(true) {
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// Over ssh, Go resolves the name, and has several messages for a DNS server that has no answer at the moment.
func TestNamesThatAreAskedAgain(t *testing.T) {
	for text, want := range map[string]bool{
		"dial tcp: lookup git.example.com on 10.96.0.10:53: no such host":                                    true,
		"dial tcp: lookup git.example.com on 10.96.0.10:53: server misbehaving":                              true,
		"dial tcp: lookup git.example.com: i/o timeout":                                                      true,
		"dial tcp: lookup git.example.com on 10.96.0.10:53: read udp 10.0.0.1:4->10.96.0.10:53: i/o timeout": true,
		"fatal: unable to access 'https://git.example.com/': Could not resolve host: git.example.com":        true,
		"ssh: handshake failed: read tcp 10.0.0.1:4->10.0.0.2:22: i/o timeout":                               false,
		"dial tcp 10.0.0.2:22: i/o timeout":                                                                  false,
	} {
		if got := outputMatches(&exitError{text: text + "\nfatal: Could not read from remote repository."}, messageNoHost); got != want {
			t.Errorf("%s: retried %t, want %t", text, got, want)
		}
	}
}

// If there is no time for another attempt, the error is reported at once.
func TestFetchAgainInTime(t *testing.T) {
	// A resolver without a network may need half a minute to fail.
	const timeForOneAttempt = 10 * time.Minute
	source := Source{URL: "https://nowhere.invalid/repo", limits: lookLimits}
	source.limits.pause = 2 * timeForOneAttempt
	ctx, cancel := context.WithTimeout(t.Context(), timeForOneAttempt)
	defer cancel()
	if _, err := ListFiles(ctx, slog.New(slog.DiscardHandler), t.TempDir(), source); fail.ReasonOf(err) != fail.RepositoryUnavailable ||
		ctx.Err() != nil {
		t.Errorf("got %v, want RepositoryUnavailable", err)
	}
}

// Credentials are not sent to the target of a redirection.
func TestFetchRedirect(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	want := commit(t, repo, "first")
	target := newWebServer(t, root)
	target.open = true
	gate := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != testToken {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, target.URL+strings.Replace(r.URL.Path, "/old", "/repo", 1)+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
	}))
	defer gate.Close()
	_, got, _, err := fetchInto(t, Source{URL: gate.URL + "/old", Auth: target.goodAuth(t)})
	if err != nil || got != want {
		t.Errorf("got %s, %v: want %s", got, err, want)
	}
	if len(target.seen) > 0 {
		t.Errorf("another host got credentials: %q", target.seen)
	}
}

func TestFetchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	logger, _ := logged()
	dir := t.TempDir()
	web := &webServer{Server: server}
	_, err := Fetch(ctx, logger, dir, Source{URL: server.URL + "/repo", Auth: web.auth(t, nil)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v: want %v", err, context.Canceled)
	}
	if got := listing(t, dir); len(got) > 0 {
		t.Errorf("the folder has %v: want nothing", got)
	}
}

// timeToListTheBranches is for servers that never list them.
const timeToListTheBranches = time.Second

// The wait for a server that accepts connections and sends nothing is bounded.
func TestFetchFromAServerThatSaysNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts the connections
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	source := Source{URL: "https://" + listener.Addr().String() + "/repo", limits: usualLimits}
	source.limits.silence = timeToListTheBranches
	_, _, _, err = fetchInto(t, source)
	wantFailure(t, err, fail.RepositoryUnavailable, "the server did not list its branches and tags within "+timeToListTheBranches.String(),
		"check the host and port")
}

func TestFetchSilentServer(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		w.(http.Flusher).Flush()
		<-release
	}))
	defer server.Close()
	defer close(release)
	limits := usualLimits
	limits.silence = timeToListTheBranches
	_, _, _, err := fetchInto(t, Source{URL: server.URL + "/repo", Auth: (&webServer{Server: server}).auth(t, nil), limits: limits})
	wantFailure(t, err, fail.RepositoryUnavailable, "did not list its branches and tags within "+timeToListTheBranches.String(),
		"check the host and port")
}

// The image of the steps and this machine have different versions of libcurl.
func TestUntrustedCertificateOfAnyCurl(t *testing.T) {
	for curl, text := range map[string]string{
		"GnuTLS, 7.88": "fatal: unable to access 'https://git.example/r.git/': server certificate verification failed. CAfile: none " +
			"CRLfile: none",
		"GnuTLS, 8.14": "fatal: unable to access 'https://git.example/r.git/': server verification failed: certificate signer not trusted. " +
			"(CAfile: /etc/ssl/certs/ca-certificates.crt CRLfile: none)",
		"OpenSSL": "fatal: unable to access 'https://git.example/r.git/': SSL certificate problem: unable to get local issuer certificate",
		"git-lfs": `batch request: Post "https://git.example/r.git/info/lfs/objects/batch": tls: failed to verify certificate: x509: ` +
			`certificate signed by unknown authority`,
		"the wrong name": "fatal: unable to access 'https://git.example/r.git/': SSL: no alternative certificate subject name matches target " +
			"host name 'git.example'",
	} {
		if !messageUntrusted.MatchString(text) {
			t.Errorf("%s: not recognised: %s", curl, text)
		}
	}
}

// A proxy that lets nothing through is no fault of the repository's server.
func TestProxyThatRefuses(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(proxy.Close)
	for _, address := range []string{proxy.URL, "http://proxy.invalid:3128"} {
		t.Setenv("https_proxy", address)
		source := Source{URL: "https://git.example.com/repo", limits: lookLimits}
		source.limits.pause = 0
		_, err := ListFiles(t.Context(), slog.New(slog.DiscardHandler), t.TempDir(), source)
		if fail.ReasonOf(err) != fail.RepositoryUnavailable || !strings.Contains(err.Error(), "the proxy") ||
			!strings.Contains(fail.NextOf(err), "network.proxy") {
			t.Errorf("%s: got %v; next: %s", address, err, fail.NextOf(err))
		}
	}
}
