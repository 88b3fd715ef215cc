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

// Repositories with rules of their own. Everybody reads and writes all others,
// but who shows a service account's token is held to its rights.
const (
	// Private repositories are read and written with the user and the
	// password in the file CredentialsFile.
	Private = "private/"
	// ReadOnly repositories refuse every push.
	ReadOnly = "readonly/"
)

// CredentialsFile is in the registry's folder: one line, USER:PASSWORD.
const CredentialsFile = "private-credentials"

// Rights says whether the bearer of a service account's token may push to the
// image stream, or that it is no token of the cluster's.
type Rights interface {
	MayPush(ctx context.Context, token, namespace, stream string) (known, allowed bool, err error)
}

const (
	// rightsTimeout is how long a push waits for an API server that is away.
	rightsTimeout = time.Minute
	rightsDelay   = 500 * time.Millisecond
	// rightsLife is how long an answer is good for: a push asks very often.
	rightsLife = 5 * time.Second
)

type gate struct {
	user, password string
	rights         Rights

	mu      sync.Mutex
	answers map[[sha256.Size]byte]answer
}

type answer struct {
	known, allowed bool
	until          time.Time
}

// newGate reads the private repositories' credentials, or makes them.
func newGate(dir string, rights Rights) (*gate, error) {
	path := filepath.Join(dir, CredentialsFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		content = []byte("puller:" + rand.Text() + "\n")
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		return nil, err
	}
	user, password, _ := strings.Cut(strings.TrimSpace(string(content)), ":")
	return &gate{user: user, password: password, rights: rights, answers: map[[sha256.Size]byte]answer{}}, nil
}

var repositoryPath = regexp.MustCompile(`^/v2/(.+)/(?:manifests|blobs|tags|referrers)/`)

// refuse answers a request that may not pass and says so.
func (g *gate) refuse(w http.ResponseWriter, r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	if r.URL.Path == "/v2/" {
		// Clients show credentials only to a registry that asks for some here;
		// those that have none go on without.
		if user == "" {
			return unauthorized(w)
		}
		return false
	}
	m := repositoryPath.FindStringSubmatch(r.URL.Path)
	if m == nil {
		return false
	}
	repository, reads := m[1], r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case strings.HasPrefix(repository, Private):
		if subtle.ConstantTimeCompare([]byte(user+":"+password), []byte(g.user+":"+g.password)) != 1 {
			return unauthorized(w)
		}
	case reads:
	case strings.HasPrefix(repository, ReadOnly):
		return denied(w)
	case user == "serviceaccount" && g.rights != nil:
		namespace, stream, ok := strings.Cut(repository, "/")
		if !ok {
			return denied(w)
		}
		known, allowed := g.mayPush(r.Context(), password, namespace, stream)
		if !known {
			return unauthorized(w)
		}
		if !allowed {
			return denied(w)
		}
	}
	return false
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
		log.Printf("asking for the rights to push to %s/%s: %v", namespace, stream, err)
		select {
		case <-ctx.Done():
			return true, false
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
