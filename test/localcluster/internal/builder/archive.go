// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// extract unpacks a tar or a gzipped tar into the folder, and writes nothing outside of it.
func extract(in io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	reader := bufio.NewReader(in)
	magic, err := reader.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(reader)
		if err != nil {
			return err
		}
		return extractTar(unzipped, root)
	}
	return extractTar(reader, root)
}

func extractTar(in io.Reader, root *os.Root) error {
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := relative(header.Name)
		if name == "." {
			continue
		}
		mode := header.FileInfo().Mode()
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, mode.Perm()|0o700)
		case tar.TypeReg:
			err = writeFile(root, name, mode, archive)
		case tar.TypeSymlink:
			err = replace(root, name, func() error { return root.Symlink(header.Linkname, name) })
		case tar.TypeLink:
			err = replace(root, name, func() error { return root.Link(relative(header.Linkname), name) })
		case tar.TypeXGlobalHeader:
		default:
			err = fmt.Errorf("%s is neither a file, a folder nor a link", header.Name)
		}
		if err != nil {
			return err
		}
	}
}

// relative returns the entry's name below the folder, "." for the folder itself.
func relative(name string) string { return path.Clean(strings.TrimPrefix(path.Clean("/"+name), "/")) }

func replace(root *os.Root, name string, put func() error) error {
	if err := parents(root, name); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return put()
}

func parents(root *os.Root, name string) error {
	if dir := filepath.Dir(name); dir != "." {
		return root.MkdirAll(dir, 0o755)
	}
	return nil
}

func writeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	return replace(root, name, func() error {
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		// Chmod is needed because the umask has changed the mode of the new file.
		return errors.Join(err, f.Chmod(mode.Perm()), f.Close())
	})
}
