// SPDX-License-Identifier: Apache-2.0

// Package registry is the cluster's image registry: go-containerregistry's, which keeps manifests in memory. This
// package also stores them on disk, so that the registry survives being killed.
//
// It answers nothing without credentials. There are three users: localcluster, who pulls and pushes everything except private/..., for
// programs on the machine; node, with which the nodes pull everything except private/... and image streams; and puller for private/....
// Service accounts use their token. In every namespace the Secret registry-pull has the token of the account default.
//
// NAMESPACE/STREAM, if the namespace exists, is pulled and pushed by localcluster, and with the token of a service account that may get or
// update imagestreams/layers there. localcluster creates the RoleBindings system:image-pullers, for all accounts of the namespace, and
// system:image-builders, for builds, once, with the account builder, and does not recreate them after a deletion.
//
// For an image stream the registry answers a request without a service account's token as OpenShift's does, with WWW-Authenticate: Bearer
// realm="http://10.223.0.2:5000/openshift/token", so nodes pull an image stream only with the pull secrets of the pod. For all other
// repositories it asks for a password.
package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
)

// Registry serves the images of a store, read-only, and the images that clients push to it.
type Registry struct {
	store   *image.Store
	dir     string
	pushed  registry.BlobHandler
	handler http.Handler
	gate    *gate

	mu sync.Mutex
	// loaded is the time of the store's last change that loadStore has read.
	loaded time.Time
}

// Open starts a registry that stores pushed content, and its users' credentials, in dir. Without rights it accepts no
// service accounts.
func Open(dir string, store *image.Store, rights Rights) (*Registry, error) {
	for _, d := range []string{"blobs", "manifests"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	r := &Registry{store: store, dir: dir, pushed: registry.NewDiskBlobHandler(filepath.Join(dir, "blobs"))}
	r.handler = registry.New(
		registry.WithBlobHandler(r),
		registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)),
	)
	var err error
	if r.gate, err = newGate(dir, rights); err != nil {
		return nil, err
	}
	if err := r.loadStore(); err != nil {
		return nil, err
	}
	return r, r.loadPushed()
}

// loadStore adds every image of the store under its name, if the store has changed.
func (r *Registry) loadStore() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, err := r.store.Changed()
	if err != nil || changed.Equal(r.loaded) {
		return err
	}
	images, err := r.store.Images()
	if err != nil {
		return err
	}
	for _, img := range images {
		content, err := os.ReadFile(r.store.Blob(img.Digest))
		if err != nil {
			return err
		}
		var manifest struct {
			MediaType string `json:"mediaType"`
		}
		if err := json.Unmarshal(content, &manifest); err != nil {
			return fmt.Errorf("reading the manifest of %s: %w", img.Name, err)
		}
		repository, tag := img.Split()
		for _, reference := range []string{tag, img.Digest.String()} {
			if err := r.replay(pushedManifest{
				Path: "/v2/" + repository + "/manifests/" + reference, MediaType: manifest.MediaType, Content: content,
			}); err != nil {
				return err
			}
		}
	}
	r.loaded = changed
	return nil
}

// pushedManifest is a manifest as a client pushed it.
type pushedManifest struct {
	Path, MediaType string
	Content         []byte
}

func (r *Registry) loadPushed() error {
	files, err := filepath.Glob(filepath.Join(r.dir, "manifests", "*.json"))
	if err != nil {
		return err
	}
	var indexes []pushedManifest
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var m pushedManifest
		if err := json.Unmarshal(content, &m); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		// The registry accepts an index only after the manifests that it lists.
		if strings.Contains(m.MediaType, "index") || strings.Contains(m.MediaType, "manifest.list") {
			indexes = append(indexes, m)
			continue
		}
		if err := r.replay(m); err != nil {
			return err
		}
	}
	for _, m := range indexes {
		if err := r.replay(m); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) replay(m pushedManifest) error {
	req := httptest.NewRequest(http.MethodPut, m.Path, bytes.NewReader(m.Content))
	req.Header.Set("Content-Type", m.MediaType)
	answer := httptest.NewRecorder()
	r.handler.ServeHTTP(answer, req)
	if answer.Code != http.StatusCreated {
		return fmt.Errorf("loading manifest %s: %d %s", m.Path, answer.Code, answer.Body)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	log.Printf("%s %s", req.Method, req.URL.Path)
	if req.URL.Path == tokenPath {
		r.gate.serveToken(w, req)
		return
	}
	if r.gate.refuse(w, req) {
		return
	}
	if strings.HasPrefix(repositoryOf(req), Slow) {
		w = slowWriter{w}
	}
	isManifest := strings.Contains(req.URL.Path, "/manifests/")
	if isManifest {
		if err := r.loadStore(); err != nil {
			log.Printf("reading the store: %v", err)
		}
	}
	switch {
	case isManifest && req.Method == http.MethodPut:
		content, err := io.ReadAll(io.LimitReader(req.Body, 8<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(content))
		answer := &statusWriter{ResponseWriter: w}
		r.handler.ServeHTTP(answer, req)
		if answer.status == http.StatusCreated {
			m := pushedManifest{Path: req.URL.Path, MediaType: req.Header.Get("Content-Type"), Content: content}
			if err := r.save(m); err != nil {
				log.Printf("saving manifest %s: %v", m.Path, err)
			}
		}
	case isManifest && req.Method == http.MethodDelete:
		r.handler.ServeHTTP(w, req)
		if err := os.Remove(r.manifestFile(req.URL.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Printf("forgetting manifest %s: %v", req.URL.Path, err)
		}
	default:
		r.handler.ServeHTTP(w, req)
	}
}

func (r *Registry) manifestFile(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(r.dir, "manifests", hex.EncodeToString(sum[:])+".json")
}

func (r *Registry) save(m pushedManifest) error {
	content, err := json.Marshal(m)
	if err != nil {
		return err
	}
	file := r.manifestFile(m.Path)
	if err := os.WriteFile(file+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// slowRate is in bytes per second. slowPart is the size of one write.
const (
	slowRate = 2 << 20
	slowPart = 32 << 10
)

// slowWriter answers as slowly as a distant registry.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(content []byte) (written int, err error) {
	for part := range slices.Chunk(content, slowPart) {
		time.Sleep(time.Duration(len(part)) * time.Second / slowRate)
		n, err := w.ResponseWriter.Write(part)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Get implements registry.BlobHandler: it returns a pushed blob, or the store's blob.
func (r *Registry) Get(ctx context.Context, repo string, h v1.Hash) (io.ReadCloser, error) {
	if f, err := os.Open(r.store.Blob(h)); err == nil {
		return f, nil
	}
	return r.pushed.Get(ctx, repo, h)
}

// Stat implements registry.BlobStatHandler.
func (r *Registry) Stat(ctx context.Context, repo string, h v1.Hash) (int64, error) {
	if info, err := os.Stat(r.store.Blob(h)); err == nil {
		return info.Size(), nil
	}
	return r.pushed.(registry.BlobStatHandler).Stat(ctx, repo, h)
}

// Put implements registry.BlobPutHandler.
func (r *Registry) Put(ctx context.Context, repo string, h v1.Hash, content io.ReadCloser) error {
	return r.pushed.(registry.BlobPutHandler).Put(ctx, repo, h, content)
}

// Delete implements registry.BlobDeleteHandler.
func (r *Registry) Delete(ctx context.Context, repo string, h v1.Hash) error {
	return r.pushed.(registry.BlobDeleteHandler).Delete(ctx, repo, h)
}

// Serve listens on the address, with plain HTTP, until the context ends.
func Serve(ctx context.Context, address, dir string, store *image.Store, rights Rights) error {
	r, err := Open(dir, store, rights)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r}
	context.AfterFunc(ctx, func() { server.Close() })
	log.Printf("registry listening on %s", address)
	return server.Serve(listener)
}
