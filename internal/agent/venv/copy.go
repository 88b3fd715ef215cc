// SPDX-License-Identifier: Apache-2.0

package venv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// copyTree copies a folder of files, links and folders. The copies can be written, whatever the originals are.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, name)
		switch {
		case entry.IsDir():
			return os.Mkdir(copied, 0o775)
		case entry.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, copied)
		}
		return copyFile(copied, path)
	})
}

func copyFile(to, from string) error {
	in, err := claimfile.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := claimfile.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o660)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// leadsTo reports whether something that was installed into a virtual environment leads to a folder. Whichever program builds a package
// for edits, it names the folder in a file at the top of site-packages: in a .pth, or in a module that finds the package.
func leadsTo(venv, folder string) (bool, error) {
	const most = 4 << 20 // modules that find packages list each of their files at most
	for _, pattern := range []string{"lib/python*/site-packages/*", "lib64/python*/site-packages/*"} {
		files, err := filepath.Glob(filepath.Join(venv, pattern))
		if err != nil {
			return false, err
		}
		for _, file := range files {
			info, err := os.Lstat(file)
			if err != nil {
				return false, fmt.Errorf("looking for links to the repository: %w", err)
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				return true, nil // pip itself makes none
			}
			if !info.Mode().IsRegular() || info.Size() > most {
				continue
			}
			content, err := claimfile.Read(file, most)
			if err != nil {
				return false, err
			}
			if bytes.Contains(content, []byte(folder)) {
				return true, nil
			}
		}
	}
	return false, nil
}
