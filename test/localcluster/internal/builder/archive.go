package builder

import (
	"archive/tar"
	"archive/zip"
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

// extract unpacks a tar, a gzipped tar or a zip into the folder, and nothing
// outside of it.
func extract(in io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	reader := bufio.NewReader(in)
	magic, err := reader.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(reader)
		if err != nil {
			return err
		}
		return extractTar(unzipped, root)
	case bytes.HasPrefix(magic, []byte("PK\x03\x04")):
		return extractZip(reader, root)
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

// extractZip needs the whole archive before it can begin.
func extractZip(in io.Reader, root *os.Root) error {
	f, err := os.CreateTemp("", "source-*.zip")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	size, err := io.Copy(f, in)
	if err != nil {
		return err
	}
	archive, err := zip.NewReader(f, size)
	if err != nil {
		return err
	}
	for _, entry := range archive.File {
		name := relative(entry.Name)
		switch {
		case name == ".":
		case strings.HasSuffix(entry.Name, "/"):
			err = root.MkdirAll(name, 0o755)
		default:
			err = extractZipped(root, name, entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func extractZipped(root *os.Root, name string, entry *zip.File) error {
	content, err := entry.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	return writeFile(root, name, entry.Mode(), content)
}

// relative is the entry's name below the folder.
func relative(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/") + emptyDot(name)
}

func emptyDot(name string) string {
	if path.Clean("/"+name) == "/" {
		return "."
	}
	return ""
}

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
		// After the umask has had its way.
		return errors.Join(err, f.Chmod(mode.Perm()), f.Close())
	})
}
