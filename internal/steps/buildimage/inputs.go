// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// inputs are everything that determines the image. Builds with the same inputs are taken to give the same image.
type inputs struct {
	Strategy   string            `json:"strategy"`
	Dockerfile string            `json:"dockerfile"`
	BuildArgs  []Arg             `json:"buildArgs"`
	Env        []Arg             `json:"env"`
	Context    []contextFile     `json:"context"`
	Bases      map[string]string `json:"bases"`
}

// contextFile is one entry of the context. The build sees only whether a file is executable, not its mode.
type contextFile struct {
	Path       string `json:"path"`
	Executable bool   `json:"executable,omitempty"`
	Link       string `json:"link,omitempty"`
	SHA256     string `json:"sha256,omitempty"`
}

// fingerprint returns the SHA-256 of the inputs as JSON, whose fields and keys have a fixed order.
func (in inputs) fingerprint() string {
	text, err := json.Marshal(in)
	if err != nil {
		panic(err) // strings and booleans alone
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// withoutBases returns the fingerprint to compare if a registry does not answer.
func (in inputs) withoutBases() string {
	bases := map[string]string{}
	for base := range in.Bases {
		bases[base] = ""
	}
	in.Bases = bases
	return in.fingerprint()
}

func (in inputs) sortedBases() []string { return slices.Sorted(maps.Keys(in.Bases)) }

func (d *Definition) scanContext() (files []contextFile, err error) {
	err = d.walk(func(path string, info fs.FileInfo, link string) error {
		file := contextFile{Path: path, Link: link}
		if info.Mode().IsRegular() {
			file.Executable = executable(info)
			hash := sha256.New()
			if err := d.copyFile(hash, path); err != nil {
				return err
			}
			file.SHA256 = hex.EncodeToString(hash.Sum(nil))
		}
		files = append(files, file)
		return nil
	})
	return files, err
}

func executable(info fs.FileInfo) bool { return info.Mode().IsRegular() && info.Mode()&0o100 != 0 }

func (d *Definition) copyFile(to io.Writer, path string) error {
	content, err := d.Context.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, content)
	return errors.Join(err, content.Close())
}

// walk calls each for every file, folder and link of the context except .git. link is the target of a link.
func (d *Definition) walk(each func(path string, info fs.FileInfo, link string) error) error {
	err := fs.WalkDir(d.Context, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if entry.IsDir() && entry.Name() == ".git" {
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		switch {
		case info.Mode().IsRegular(), info.IsDir():
		case info.Mode()&fs.ModeSymlink != 0:
			if link, err = fs.ReadLink(d.Context, path); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is a %s: want files, folders and links", path, info.Mode().Type())
		}
		return each(path, info, link)
	})
	if err != nil {
		return fmt.Errorf("reading the folder of %s: %w", d.Flavour, err)
	}
	return nil
}

// writeContext writes the context as a compressed tar, which a binary build expects, with the pinned Dockerfile.
func (d *Definition) writeContext(w io.Writer, in inputs) error {
	dockerfile, err := d.pinned(in)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	err = d.walk(func(path string, info fs.FileInfo, link string) error {
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header.Name = path
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		// Modes differ as the fingerprint does. An embedded file is read-only, and the build may write to it; pods with other users need
		// files that belong to the user alone.
		switch {
		case executable(info):
			header.Mode = 0o755
		case info.Mode().IsRegular():
			header.Mode = 0o644
		}
		if info.IsDir() {
			header.Name += "/"
			header.Mode = 0o755
		}
		if path == dockerfileName {
			header.Size = int64(len(dockerfile))
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		if path == dockerfileName {
			_, err := archive.Write(dockerfile)
			return err
		}
		return d.copyFile(archive, path)
	})
	return errors.Join(err, archive.Close(), zipped.Close())
}

func (in inputs) basesText() string {
	var all []string
	for _, base := range in.sortedBases() {
		text := base
		if digest := in.Bases[base]; digest != "" && !strings.Contains(base, "@") {
			text += "@" + digest
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}
