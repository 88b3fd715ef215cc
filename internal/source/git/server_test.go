// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

const (
	testUser  = "somebody"
	testToken = "s3cret-token"
)

// git runs git without the configuration of the user who runs the test.
func git(t testing.TB, dir, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com",
		"-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", "-c", "advice.addEmbeddedRepo=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, stderr.Bytes())
	}
	return strings.TrimSuffix(string(out), "\n")
}

// newRepository creates a repository with a work tree under the server's root.
func newRepository(t testing.TB, root, name string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "", "init", "-q")
	// The server serves the folder itself, as it would serve NAME.git/.git.
	return dir
}

func put(t testing.TB, dir, name, content string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// commit commits all changes and returns the hash.
func commit(t testing.TB, dir, message string) string {
	t.Helper()
	git(t, dir, "", "add", "-A")
	git(t, dir, "", "commit", "-q", "--allow-empty", "-m", message)
	return git(t, dir, "", "rev-parse", "HEAD")
}

// These are the objects of the LFS batch API.
type (
	lfsObject struct {
		ID      string               `json:"oid"`
		Size    int64                `json:"size"`
		Actions map[string]lfsAction `json:"actions,omitempty"`
		Error   *lfsFailure          `json:"error,omitempty"`
	}
	lfsAction struct {
		Href   string            `json:"href"`
		Header map[string]string `json:"header"`
	}
	lfsFailure struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
)

// webServer is git http-backend over TLS, with an LFS server for each repository.
type webServer struct {
	*httptest.Server
	root string
	// old makes it use the protocol before version 2.
	old bool
	// open makes it accept requests without credentials.
	open bool
	// objects are the LFS objects by id.
	objects map[string][]byte
	// lfsAnswer, if set, is sent in place of an object, and lfsBatch in place of the list of objects.
	lfsAnswer func(w http.ResponseWriter, id string)
	lfsBatch  func(w http.ResponseWriter)

	mu sync.Mutex
	// seen lists the Authorization headers of the requests.
	seen []string
}

func newWebServer(t testing.TB, root string) *webServer {
	t.Helper()
	s := &webServer{root: root, objects: map[string][]byte{}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if got := r.Header.Get("Authorization"); got != "" {
		s.seen = append(s.seen, got)
	}
	s.mu.Unlock()
	user, password, _ := r.BasicAuth()
	if !s.open && (user != testUser || password != testToken) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "no entry with "+password, http.StatusUnauthorized)
		return
	}
	if repository, rest, ok := strings.Cut(r.URL.Path, "/info/lfs/"); ok {
		s.serveLFS(w, r, repository, rest)
		return
	}
	if s.old {
		r.Header.Del("Git-Protocol")
	}
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + s.root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		Stderr: io.Discard,
		Logger: nil,
	}).ServeHTTP(w, r)
}

func (s *webServer) serveLFS(w http.ResponseWriter, r *http.Request, repository, rest string) {
	if id, ok := strings.CutPrefix(rest, "objects/"); ok && id != "batch" {
		if s.lfsAnswer != nil {
			s.lfsAnswer(w, id)
			return
		}
		_, _ = w.Write(s.objects[id])
		return
	}
	if s.lfsBatch != nil {
		s.lfsBatch(w)
		return
	}
	var ask struct{ Objects []lfsObject }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for i := range ask.Objects {
		o := &ask.Objects[i]
		if _, ok := s.objects[o.ID]; !ok {
			o.Error = &lfsFailure{Code: 404, Message: "Object does not exist"}
			continue
		}
		o.Actions = map[string]lfsAction{"download": {
			Href:   s.URL + repository + "/info/lfs/objects/" + o.ID,
			Header: map[string]string{"Authorization": r.Header.Get("Authorization")},
		}}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"objects": ask.Objects})
}

// addObject adds an object to the LFS server and returns its pointer.
func (s *webServer) addObject(content []byte) string {
	sum := sha256.Sum256(content)
	id := hex.EncodeToString(sum[:])
	s.objects[id] = content
	return pointerTo(id, int64(len(content)))
}

func pointerTo(id string, size int64) string {
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", id, size)
}

func (s *webServer) source(repository, revision string) Source {
	return Source{URL: s.URL + "/" + repository, Revision: revision}
}

// caFile writes the server's certificate as a PEM bundle.
func (s *webServer) caFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca-bundle.crt")
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, bundle, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// auth returns credentials with the keys of a Secret and the server's certificate.
func (s *webServer) auth(t testing.TB, keys map[string]string) Auth {
	t.Helper()
	a, err := secret(t, keys).WithCAFile(s.caFile(t))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// goodAuth returns credentials that the server accepts.
func (s *webServer) goodAuth(t testing.TB) Auth {
	t.Helper()
	return s.auth(t, map[string]string{"username": testUser, "token": testToken + "\n"})
}

// secret writes the folder of a mounted Secret.
func secret(t testing.TB, keys map[string]string) Auth {
	t.Helper()
	dir := ""
	if len(keys) > 0 {
		dir = t.TempDir()
	}
	for key, value := range keys {
		put(t, dir, key, value)
	}
	a, err := AuthFromDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sshServer runs git-upload-pack for clients with its key.
type sshServer struct {
	root string
	// old makes it accept no variables, as most servers do.
	old bool
	// lfs is the output of git-lfs-authenticate, "" if the command does not exist.
	lfs string

	address   string
	hostKey   ssh.Signer
	clientKey string
	config    *ssh.ServerConfig
}

// newSSHServer starts a server with a host key of its own and the keys in more.
func newSSHServer(t testing.TB, root string, more ...ssh.Signer) *sshServer {
	t.Helper()
	s := &sshServer{root: root}
	s.hostKey, _ = newKey(t)
	allowed, text := newKey(t)
	s.clientKey = text
	s.config = &ssh.ServerConfig{PublicKeyCallback: func(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if conn.User() == "git" && bytes.Equal(key.Marshal(), allowed.PublicKey().Marshal()) {
			return nil, nil
		}
		return nil, fmt.Errorf("no entry for %s", conn.User())
	}}
	for _, key := range append(more, s.hostKey) {
		s.config.AddHostKey(key)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s.address = listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func newKey(t testing.TB) (ssh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, string(pem.EncodeToMemory(block))
}

func newRSAKey(t testing.TB) ssh.Signer {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func (s *sshServer) serve(conn net.Conn) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offer := range channels {
		channel, requests, err := offer.Accept()
		if err != nil {
			return
		}
		go s.serveSession(channel, requests)
	}
}

func (s *sshServer) serveSession(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	protocol := ""
	for r := range requests {
		switch r.Type {
		case "env":
			var v struct{ Name, Value string }
			if ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "GIT_PROTOCOL" && !s.old {
				protocol = v.Value
			}
			_ = r.Reply(!s.old, nil)
		case "exec":
			_ = r.Reply(true, nil)
			var v struct{ Command string }
			status := struct{ Status uint32 }{1}
			if ssh.Unmarshal(r.Payload, &v) == nil && s.run(v.Command, protocol, channel) == nil {
				status.Status = 0
			}
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(status))
			return
		default:
			_ = r.Reply(false, nil)
		}
	}
}

func (s *sshServer) run(command, protocol string, channel ssh.Channel) error {
	if strings.HasPrefix(command, "git-lfs-authenticate ") && s.lfs != "" {
		_, err := io.WriteString(channel, s.lfs)
		return err
	}
	word := regexp.MustCompile(`^git-upload-pack '/(.*)'$`).FindStringSubmatch(command)
	if word == nil {
		fmt.Fprintf(channel.Stderr(), "ERROR: no command %q here", command)
		return fmt.Errorf("no command %q", command)
	}
	cmd := exec.Command("git", "-c", "safe.directory=*", "upload-pack", filepath.Join(s.root, word[1]))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_PROTOCOL=" + protocol}
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	return cmd.Run()
}

func (s *sshServer) source(repository, revision string) Source {
	return Source{URL: "ssh://git@" + s.address + "/" + repository, Revision: revision}
}

func (s *sshServer) knownHosts() string {
	return knownhosts.Line([]string{s.address}, s.hostKey.PublicKey()) + "\n"
}

func (s *sshServer) goodAuth(t testing.TB) Auth {
	t.Helper()
	return secret(t, map[string]string{"ssh-privatekey": s.clientKey, "known_hosts": s.knownHosts()})
}

// logged returns a log and its text, for tests to read.
func logged() (*slog.Logger, *bytes.Buffer) {
	var text bytes.Buffer
	return slog.New(slog.NewTextHandler(&text, nil)), &text
}

// fetchInto fetches to a new folder. After a failure the folder must be empty.
func fetchInto(t testing.TB, s Source) (dir, commit, log string, err error) {
	t.Helper()
	dir = t.TempDir()
	logger, text := logged()
	if s.limits == (limits{}) {
		s.limits = usualLimits
	}
	s.limits.pause = 0 // no pause between attempts to reach a server
	commit, err = Fetch(t.Context(), logger, dir, s)
	if err != nil {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("after a failure the folder has %v: want nothing", left)
		}
	}
	return dir, commit, text.String(), err
}

// listing describes everything in a folder: kinds, executable bits, contents, targets.
func listing(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch {
		case name == ".git":
			got[name] = "git's own"
			if info.IsDir() {
				return filepath.SkipDir
			}
		case info.IsDir():
			got[name] = "folder"
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			got[name] = "link to " + target
			return err
		default:
			content, err := os.ReadFile(path)
			got[name] = fmt.Sprintf("%t %q", info.Mode()&0o100 != 0, content)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
