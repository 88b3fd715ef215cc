// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// fileLayer is an uncompressed layer in a tar file. No slow network is between the two sides, so compression would only
// cost time on both.
type fileLayer struct {
	path   string
	digest v1.Hash
	size   int64
}

func (l fileLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l fileLayer) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }

// newLayer creates a layer from the tar archive that write writes, in a file in dir. The file must stay until the layer
// is stored.
func newLayer(dir string, write func(io.Writer) error) (layer v1.Layer, err error) {
	f, err := os.CreateTemp(dir, "layer-*.tar")
	if err != nil {
		return nil, err
	}
	defer removeOnError(f.Name(), &err)
	defer f.Close()
	hash := sha256.New()
	if err := write(io.MultiWriter(f, hash)); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return fileLayer{
		path:   f.Name(),
		digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))},
		size:   info.Size(),
	}, nil
}

// FilesLayer returns a layer with files: path in the image to file on this machine.
func FilesLayer(dir string, files map[string]string) (v1.Layer, error) {
	return newLayer(dir, func(w io.Writer) error {
		archive := tar.NewWriter(w)
		folders := map[string]bool{}
		targets := make([]string, 0, len(files))
		for target := range files {
			targets = append(targets, target)
			for d := path.Dir(target); d != "/" && d != "."; d = path.Dir(d) {
				folders[d] = true
			}
		}
		sorted := make([]string, 0, len(folders))
		for d := range folders {
			sorted = append(sorted, d)
		}
		sort.Strings(sorted)
		for _, d := range sorted {
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d[1:] + "/", Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
				return err
			}
		}
		sort.Strings(targets)
		for _, target := range targets {
			if err := addFile(archive, target, files[target]); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

func addFile(archive *tar.Writer, target, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target[1:], Mode: 0o755, Size: info.Size(),
		ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}

// FolderLayer returns a layer with parts of a root file system, with their owners and modes.
func FolderLayer(dir, root string, parts ...string) (v1.Layer, error) {
	return newLayer(dir, func(w io.Writer) error {
		args := append([]string{"--create", "--sort=name", "--numeric-owner", "--xattrs", "--directory", root}, parts...)
		cmd := exec.Command("tar", args...)
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("archiving %s: %w", filepath.Join(root, fmt.Sprint(parts)), err)
		}
		return nil
	})
}

// removeOnError deletes a temporary file if the step failed.
func removeOnError(path string, err *error) {
	if *err != nil {
		os.Remove(path)
	}
}
