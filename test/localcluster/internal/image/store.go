// SPDX-License-Identifier: Apache-2.0

// Package image assembles container images from files and root file systems and keeps them in an OCI layout, with a key
// for the inputs of each image.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	nameAnnotation = "org.opencontainers.image.ref.name"
	keyAnnotation  = "localcluster.made-of"
)

// Store is an OCI layout with one image per name.
type Store struct {
	path layout.Path
	// mu guards the layout's index, which is read, changed and written as a whole.
	mu sync.Mutex
}

// OpenStore opens the layout in dir, or creates it.
func OpenStore(dir string) (*Store, error) {
	path, err := layout.FromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		path, err = layout.Write(dir, empty.Index)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the image store %s: %w", dir, err)
	}
	return &Store{path: path}, nil
}

// Image is a stored image.
type Image struct {
	Name   string
	Digest v1.Hash
}

// Split splits NAME:TAG into its parts. NAME alone stands for NAME:latest.
func (i Image) Split() (repository, tag string) {
	repository, tag, ok := strings.Cut(i.Name, ":")
	if !ok {
		tag = "latest"
	}
	return repository, tag
}

// Images lists the stored images.
func (s *Store) Images() ([]Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, err := s.manifest()
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, d := range index.Manifests {
		images = append(images, Image{Name: d.Annotations[nameAnnotation], Digest: d.Digest})
	}
	return images, nil
}

// Changed returns the time at which an image was last stored or replaced.
func (s *Store) Changed() (time.Time, error) {
	info, err := os.Stat(filepath.Join(string(s.path), "index.json"))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Blob returns the path of a blob's file, which may not exist.
func (s *Store) Blob(h v1.Hash) string {
	return filepath.Join(string(s.path), "blobs", h.Algorithm, h.Hex)
}

// Ensure returns the digest of the image with that name and key. If it is not stored, Ensure calls assemble and
// replaces the name's old image.
func (s *Store) Ensure(name, key string, assemble func() (v1.Image, error)) (v1.Hash, error) {
	if digest, ok, err := s.find(name, key); err != nil || ok {
		return digest, err
	}
	img, err := assemble()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("assembling image %s: %w", name, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("assembling image %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.path.ReplaceImage(img, match.Annotation(nameAnnotation, name), layout.WithAnnotations(map[string]string{
		nameAnnotation: name, keyAnnotation: key,
	})); err != nil {
		return v1.Hash{}, fmt.Errorf("storing image %s: %w", name, err)
	}
	return digest, s.collectGarbage()
}

// Image returns the stored image of that name, and its key.
func (s *Store) Image(name string) (img v1.Image, key string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, err := s.manifest()
	if err != nil {
		return nil, "", err
	}
	for _, d := range index.Manifests {
		if d.Annotations[nameAnnotation] == name {
			img, err = s.path.Image(d.Digest)
			return img, d.Annotations[keyAnnotation], err
		}
	}
	return nil, "", fmt.Errorf("no image is stored under the name %s", name)
}

// Has reports whether the store has the image of that name and key.
func (s *Store) Has(name, key string) (bool, error) {
	_, ok, err := s.find(name, key)
	return ok, err
}

func (s *Store) find(name, key string) (v1.Hash, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, err := s.manifest()
	if err != nil {
		return v1.Hash{}, false, err
	}
	for _, d := range index.Manifests {
		if d.Annotations[nameAnnotation] == name && d.Annotations[keyAnnotation] == key {
			return d.Digest, true, nil
		}
	}
	return v1.Hash{}, false, nil
}

func (s *Store) manifest() (*v1.IndexManifest, error) {
	index, err := s.path.ImageIndex()
	if err != nil {
		return nil, err
	}
	return index.IndexManifest()
}

func (s *Store) collectGarbage() error {
	unused, err := s.path.GarbageCollect()
	if err != nil {
		return err
	}
	for _, h := range unused {
		if err := s.path.RemoveBlob(h); err != nil {
			return err
		}
	}
	return nil
}

// Assemble creates an image from layers and a configuration.
func Assemble(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	file.Config = config
	return mutate.ConfigFile(img, file)
}
