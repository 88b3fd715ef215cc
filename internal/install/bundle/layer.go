// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type entry struct {
	header  tar.Header
	content []byte
}

func file(name string, content []byte, mode int64) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content}
}

func readFile(name, source string, mode int64) (entry, error) {
	content, err := os.ReadFile(source)
	return file(name, content, mode), err
}

// folders adds the entries' folders before them, each once.
func folders(entries []entry) []entry {
	var all []entry
	made := map[string]bool{}
	var makeFolder func(name string)
	makeFolder = func(name string) {
		if name == "." || made[name] {
			return
		}
		makeFolder(path.Dir(name))
		made[name] = true
		all = append(all, entry{header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}})
	}
	for _, e := range entries {
		makeFolder(path.Dir(e.header.Name))
		all = append(all, e)
	}
	return all
}

// archive returns the tar archive of the entries, without times and owners of this machine.
func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := e.header
		header.ModTime = time.Unix(0, 0)
		// USTAR if the name fits, because every program reads it.
		header.Format = tar.FormatUnknown
		header.Size = int64(len(e.content))
		if err := w.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("archiving %s: %w", header.Name, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("archiving %s: %w", header.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func newLayer(entries []entry) (v1.Layer, error) {
	content, err := archive(entries)
	if err != nil {
		return nil, err
	}
	// Not the fastest level: it is compressed once, and each node of a cluster pulls it.
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching,
	)
}

// filesBelow returns the files below a folder as files below into.
func filesBelow(dir, into string, mode int64) (entries []entry, err error) {
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(name string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		entries = append(entries, file(path.Join(into, name), content, mode))
		return err
	})
	return entries, err
}

// ArchiveFolder returns the tar archive of the files below a folder. It is reproducible.
func ArchiveFolder(dir string) ([]byte, error) {
	entries, err := filesBelow(dir, "", 0o644)
	if err != nil {
		return nil, fmt.Errorf("archiving %s: %w", dir, err)
	}
	return archive(folders(entries))
}
