package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Repositories with rules of their own.
const (
	// Private repositories are read and written only as PrivateUser.
	Private = "private/"
	// ReadOnly repositories refuse every push.
	ReadOnly = "readonly/"
)

// Users of the registry. It refuses all others, except service accounts, which show their token.
const (
	// ClusterUser reads and writes everything except Private repositories: the nodes pull as this user, and
	// programs on the machine push as it.
	ClusterUser = "localcluster"
	// PrivateUser reads everything.
	PrivateUser = "puller"
	// accountUser is the user of a service account's token, as on OpenShift.
	accountUser = "serviceaccount"
)

// CredentialsFile returns the file with the user's credentials: one line, USER:PASSWORD.
func CredentialsFile(dir, user string) string {
	if user == PrivateUser {
		return filepath.Join(dir, "private-credentials")
	}
	return filepath.Join(dir, "credentials")
}

// Password returns the user's password, and creates it the first time.
func Password(dir, user string) (string, error) {
	file := CredentialsFile(dir, user)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content = []byte(user + ":" + rand.Text() + "\n")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		err = os.WriteFile(file, content, 0o600)
	}
	_, password, _ := strings.Cut(strings.TrimSpace(string(content)), ":")
	return password, err
}

// Rights reports whether the cluster knows the token, and whether its service account may push to the image stream.
type Rights interface {
	MayPush(ctx context.Context, token, namespace, stream string) (known, allowed bool, err error)
}

const (
	// rightsTimeout is how long a request waits for an API server that is down.
	rightsTimeout = time.Minute
	rightsDelay   = 500 * time.Millisecond
	// rightsLife is how long an answer is reused, because one push sends many requests.
	rightsLife = 5 * time.Second
)

type gate struct {
	passwords map[string]string
	rights    Rights

	// mu guards answers.
	mu      sync.Mutex
	answers map[[sha256.Size]byte]answer
}

type answer struct {
	known, allowed bool
	until          time.Time
}

func newGate(dir string, rights Rights) (*gate, error) {
	g := &gate{passwords: map[string]string{}, rights: rights, answers: map[[sha256.Size]byte]answer{}}
	for _, user := range []string{ClusterUser, PrivateUser} {
		password, err := Password(dir, user)
		if err != nil {
			return nil, err
		}
		g.passwords[user] = password
	}
	return g, nil
}

var repositoryPath = regexp.MustCompile(`^/v2/(.+)/(?:manifests|blobs|tags|referrers)/`)

// refuse answers a request that is not allowed, and reports whether it did.
func (g *gate) refuse(w http.ResponseWriter, r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	if !ok {
		return unauthorized(w)
	}
	repository := ""
	if m := repositoryPath.FindStringSubmatch(r.URL.Path); m != nil {
		repository = m[1]
	}
	known, allowed := g.authenticated(user, password), user == ClusterUser
	if user == accountUser && g.rights != nil {
		namespace, stream, _ := strings.Cut(repository, "/")
		known, allowed = g.mayPush(r.Context(), password, namespace, stream)
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case !known:
		return unauthorized(w)
	case strings.HasPrefix(repository, Private):
		if user != PrivateUser {
			return unauthorized(w)
		}
	case !reads && (!allowed || strings.HasPrefix(repository, ReadOnly)):
		return denied(w)
	}
	return false
}

func (g *gate) authenticated(user, password string) bool {
	want, ok := g.passwords[user]
	return ok && subtle.ConstantTimeCompare([]byte(password), []byte(want)) == 1
}

func (g *gate) mayPush(ctx context.Context, token, namespace, stream string) (known, allowed bool) {
	key := sha256.Sum256([]byte(token + "\n" + namespace + "/" + stream))
	g.mu.Lock()
	a, ok := g.answers[key]
	g.mu.Unlock()
	if ok && time.Now().Before(a.until) {
		return a.known, a.allowed
	}
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	for {
		known, allowed, err := g.rights.MayPush(ctx, token, namespace, stream)
		if err == nil {
			g.mu.Lock()
			g.answers[key] = answer{known, allowed, time.Now().Add(rightsLife)}
			g.mu.Unlock()
			return known, allowed
		}
		log.Printf("checking the rights of a service account in %s/%s: %v", namespace, stream, err)
		select {
		case <-ctx.Done():
			return false, false
		case <-time.After(rightsDelay):
		}
	}
}

func unauthorized(w http.ResponseWriter) bool {
	w.Header().Set("WWW-Authenticate", `Basic realm="localcluster"`)
	return registryError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
}

func denied(w http.ResponseWriter) bool {
	return registryError(w, http.StatusForbidden, "DENIED", "requested access to the resource is denied")
}

func registryError(w http.ResponseWriter, status int, code, message string) bool {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.WriteHeader(status)
	body := map[string]any{"errors": []map[string]string{{"code": code, "message": message}}}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Printf("answering: %v", err)
	}
	return true
}
