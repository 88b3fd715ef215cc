// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Repositories with rules of their own.
const (
	// Private repositories allow reads and writes only by PrivateUser.
	Private = "private/"
	// ReadOnly repositories refuse every push.
	ReadOnly = "readonly/"
	// Slow repositories send their content at slowRate.
	Slow = "slow/"
)

// Users of the registry. It refuses all others except service accounts, which authenticate with their token.
const (
	// ClusterUser reads and writes everything except Private repositories. Programs on the machine push as this user.
	ClusterUser = "localcluster"
	// NodeUser reads everything except Private repositories and image streams. The nodes pull images that need no pull
	// secret as this user.
	NodeUser = "node"
	// PrivateUser reads everything except image streams, and writes Private repositories.
	PrivateUser = "puller"
	// accountUser is the user of a service account's token, as on OpenShift.
	accountUser = "serviceaccount"
)

// The verbs on imagestreams/layers that a pull and a push require.
const (
	verbOfPull = "get"
	verbOfPush = "update"
)

// tokenPath is the path that exchanges a service account's token for a bearer token, which is the same token.
// anonymousToken is the answer to a request without credentials. Both are the same in openshift/image-registry.
const (
	tokenPath      = "/openshift/token"
	anonymousToken = "anonymous"
)

// CredentialsFile returns the file with the user's credentials: one line, USER:PASSWORD.
func CredentialsFile(dir, user string) string {
	switch user {
	case PrivateUser:
		return filepath.Join(dir, "private-credentials")
	case NodeUser:
		return filepath.Join(dir, "node-credentials")
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

// Rights are the registry's queries to the cluster.
type Rights interface {
	// May reports whether the cluster knows the token, and whether its service account has the verb on the layers of
	// the image stream.
	May(ctx context.Context, token, namespace, stream, verb string) (known, allowed bool, err error)
	// HasStreams reports whether repositories below the name are image streams. They are if a namespace of this name
	// exists.
	HasStreams(ctx context.Context, namespace string) (bool, error)
}

const (
	// rightsTimeout is the maximum time that a request waits for an API server that is down.
	rightsTimeout = time.Minute
	rightsDelay   = 500 * time.Millisecond
	// rightsLife is the time for which the gate reuses an answer, because a pull or a push sends many requests.
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
	for _, user := range []string{ClusterUser, NodeUser, PrivateUser} {
		password, err := Password(dir, user)
		if err != nil {
			return nil, err
		}
		g.passwords[user] = password
	}
	return g, nil
}

var repositoryPath = regexp.MustCompile(`^/v2/(.+)/(?:manifests|blobs|tags|referrers)/`)

// repositoryOf returns the repository in the request's path, "" for none.
func repositoryOf(r *http.Request) string {
	if m := repositoryPath.FindStringSubmatch(r.URL.Path); m != nil {
		return m[1]
	}
	return ""
}

// caller is the sender of a request, and the cluster's answer about it.
type caller struct {
	user           string
	known, allowed bool
}

// refuse answers a request that is not allowed, and reports whether it did.
func (g *gate) refuse(w http.ResponseWriter, r *http.Request) bool {
	repository := repositoryOf(r)
	reads, verb := true, verbOfPull
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		reads, verb = false, verbOfPush
	}
	c := g.caller(r, repository, verb)
	switch {
	case c.user == ClusterUser && c.known && reads && !strings.HasPrefix(repository, Private):
		return false
	case g.isStream(r.Context(), repository):
		return refuseStream(w, r, c, reads)
	case !c.known:
		return unauthorized(w)
	case strings.HasPrefix(repository, Private):
		if c.user != PrivateUser {
			return unauthorized(w)
		}
	case !reads && (!c.allowed || strings.HasPrefix(repository, ReadOnly)):
		return denied(w)
	}
	return false
}

// refuseStream answers as OpenShift's registry does: it offers a token to callers without one. It treats the
// credentials of the nodes and of other repositories as no credentials.
func refuseStream(w http.ResponseWriter, r *http.Request, c caller, reads bool) bool {
	switch {
	case c.user != accountUser && c.user != ClusterUser:
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", "http://"+r.Host+tokenPath))
		return unauthenticated(w)
	case !c.known, reads && !c.allowed:
		return unauthorized(w)
	case !c.allowed:
		return denied(w)
	}
	return false
}

// caller reads the credentials: a user and a password, or the bearer token of a service account.
func (g *gate) caller(r *http.Request, repository, verb string) caller {
	user, password, ok := r.BasicAuth()
	if token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); bearer {
		user, password, ok = accountUser, token, true
	}
	switch {
	case !ok:
		return caller{}
	case user != accountUser:
		return caller{user, g.authenticated(user, password), user == ClusterUser}
	case g.rights == nil || password == anonymousToken:
		return caller{user: user}
	}
	namespace, stream, _ := strings.Cut(repository, "/")
	known, allowed := g.ask(r.Context(), strings.Join([]string{password, namespace, stream, verb}, "\n"),
		func(ctx context.Context) (known, allowed bool, err error) {
			return g.rights.May(ctx, password, namespace, stream, verb)
		})
	return caller{user, known, allowed}
}

// isStream reports whether the repository is an image stream of a user. If the cluster does not answer, it returns
// true.
func (g *gate) isStream(ctx context.Context, repository string) bool {
	namespace, stream, ok := strings.Cut(repository, "/")
	if !ok || stream == "" || g.rights == nil || slices.Contains([]string{Private, ReadOnly, Slow}, namespace+"/") {
		return false
	}
	known, has := g.ask(ctx, namespace, func(ctx context.Context) (known, has bool, err error) {
		has, err = g.rights.HasStreams(ctx, namespace)
		return true, has, err
	})
	return has || !known
}

func (g *gate) authenticated(user, password string) bool {
	want, ok := g.passwords[user]
	return ok && subtle.ConstantTimeCompare([]byte(password), []byte(want)) == 1
}

// ask queries the cluster, unless a recent answer to the same query is still valid.
func (g *gate) ask(ctx context.Context, about string, question func(context.Context) (known, allowed bool, err error)) (
	known, allowed bool) {
	key := sha256.Sum256([]byte(about))
	g.mu.Lock()
	a, ok := g.answers[key]
	g.mu.Unlock()
	if ok && time.Now().Before(a.until) {
		return a.known, a.allowed
	}
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	for {
		known, allowed, err := question(ctx)
		if err == nil {
			g.mu.Lock()
			g.answers[key] = answer{known, allowed, time.Now().Add(rightsLife)}
			g.mu.Unlock()
			return known, allowed
		}
		log.Printf("asking the cluster about a repository or a service account: %v", err)
		select {
		case <-ctx.Done():
			return false, false
		case <-time.After(rightsDelay):
		}
	}
}

// serveToken answers a service account with its own token as the bearer token.
func (g *gate) serveToken(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	token := anonymousToken
	if r.Header.Get("Authorization") != "" {
		c := g.caller(r, "", verbOfPull)
		if c.user != accountUser || !c.known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, token, _ = r.BasicAuth()
	}
	reply(w, http.StatusOK, map[string]string{"token": token, "access_token": token})
}

func unauthorized(w http.ResponseWriter) bool {
	w.Header().Set("WWW-Authenticate", `Basic realm="localcluster"`)
	return unauthenticated(w)
}

func unauthenticated(w http.ResponseWriter) bool {
	return registryError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
}

func denied(w http.ResponseWriter) bool {
	return registryError(w, http.StatusForbidden, "DENIED", "requested access to the resource is denied")
}

func registryError(w http.ResponseWriter, status int, code, message string) bool {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	reply(w, status, map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
	return true
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Printf("answering: %v", err)
	}
}
