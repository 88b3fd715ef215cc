// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// tree reads small files of a tree at /. A missing or unreadable file is empty:
// sysfs differs by kernel and by what a container may see.
type tree struct{ root fs.FS }

// readText returns a file's content without the newline at its end.
func (t tree) readText(elements ...string) string {
	content, err := fs.ReadFile(t.root, path.Join(elements...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (t tree) exists(elements ...string) bool {
	_, err := fs.Stat(t.root, path.Join(elements...))
	return err == nil
}

// listNames lists a folder, numbers in their order: mlx5_2 before mlx5_10.
func (t tree) listNames(elements ...string) []string {
	entries, err := fs.ReadDir(t.root, path.Join(elements...))
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.SortFunc(names, humanize.Natural)
	return names
}

// target returns the target of a relative link, as a path of the tree, empty if there is no such link.
func (t tree) target(elements ...string) string {
	name := path.Join(elements...)
	target, err := fs.ReadLink(t.root, name)
	if err != nil {
		return ""
	}
	return path.Join(path.Dir(name), target)
}

// SysRootVariable is the variable of a container with another sysfs than the
// machine's own. It is documented with mlenv-agent rdma.
const SysRootVariable = "MLENV_SYS_ROOT"

// SysRootOf returns its value in a process's environment, "" for none.
func SysRootOf(environ []string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, SysRootVariable+"="); ok {
			return value
		}
	}
	return ""
}

// RootFS returns the machine's own tree or, with a sysRoot, that tree laid over it:
// files of sysRoot win, and only they exist below sys and dev/infiniband.
func RootFS(sysRoot string) fs.FS {
	if sysRoot == "" {
		return os.DirFS("/")
	}
	return overlay{over: os.DirFS(sysRoot), base: os.DirFS("/")}
}

// overlay is two trees laid over each other.
type overlay struct{ over, base fs.FS }

func (o overlay) layerOf(name string) fs.FS {
	for _, whole := range []string{"sys", "dev/infiniband"} {
		if name == whole || strings.HasPrefix(name, whole+"/") {
			return o.over
		}
	}
	if _, err := fs.Lstat(o.over, name); err == nil {
		return o.over
	}
	return o.base
}

// Open implements fs.FS.
func (o overlay) Open(name string) (fs.File, error) { return o.layerOf(name).Open(name) }

// ReadLink implements fs.ReadLinkFS.
func (o overlay) ReadLink(name string) (string, error) { return fs.ReadLink(o.layerOf(name), name) }

// Lstat implements fs.ReadLinkFS.
func (o overlay) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(o.layerOf(name), name) }
