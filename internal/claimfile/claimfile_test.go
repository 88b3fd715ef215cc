// SPDX-License-Identifier: Apache-2.0

package claimfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// unusual returns the paths of files that are not regular files.
func unusual(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	t.Chdir(dir) // the path of a socket must be short
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	err = errors.Join(syscall.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("folder"), 0o700), os.WriteFile(at("file"), nil, 0o600),
		os.Symlink("file", at("link")), os.Symlink("/dev/zero", at("link to a device")))
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"device": "/dev/zero"}
	for _, name := range []string{"socket", "fifo", "folder", "link", "link to a device"} {
		paths[name] = at(name)
	}
	return paths
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	for name, path := range unusual(t) {
		if _, err := Read(path, 100); !errors.Is(err, ErrNotRegular) {
			t.Errorf("reading a %s: %v, want %v", name, err, ErrNotRegular)
		}
		if _, _, err := ReadTail(path, 100); !errors.Is(err, ErrNotRegular) {
			t.Errorf("reading the end of a %s: %v, want %v", name, err, ErrNotRegular)
		}
		if file, err := Append(path); err == nil {
			file.Close()
			t.Errorf("a %s is opened for writing", name)
		}
		if file, err := OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
			file.Close()
			t.Errorf("a %s is opened for reading and writing", name)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "missing"), 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a missing file: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestOnlyRegularFilesBelowARoot: a link may lead to a file below the root, and nowhere else.
func TestOnlyRegularFilesBelowARoot(t *testing.T) {
	paths := unusual(t)
	dir := filepath.Dir(paths["fifo"])
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files := FolderFS(dir)
	for _, name := range []string{"socket", "fifo", "folder", "link to a device", "missing"} {
		if _, err := ReadIn(root, name, 100); err == nil {
			t.Errorf("a %s is read", name)
		}
		for _, flag := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC} {
			if file, err := OpenFileIn(root, name, flag, 0o600); err == nil {
				file.Close()
				t.Errorf("a %s is opened for writing", name)
			}
		}
		if _, err := fs.ReadFile(files, name); err == nil {
			t.Errorf("a %s of the folder is read", name)
		}
	}
	for _, name := range []string{"file", "link"} {
		if _, err := ReadIn(root, name, 100); err != nil {
			t.Error(err)
		}
		if _, err := fs.ReadFile(files, name); err != nil {
			t.Error(err)
		}
	}
	if target, err := fs.ReadLink(files, "link"); err != nil || target != "file" {
		t.Errorf("link leads to %q, %v", target, err)
	}
	if _, err := files.Open("../x"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a path out of the folder: %v", err)
	}
	if entries, err := fs.ReadDir(files, "."); err != nil || len(entries) != 6 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

func TestSizeIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"0123", "456789"} {
		file, err := Append(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	if content, err := Read(path, 10); err != nil || string(content) != "0123456789" {
		t.Errorf("got %q, %v; want the whole file", content, err)
	}
	if _, err := Read(path, 9); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file of one byte more than allowed: %v, want %v with its path", err, ErrTooLarge)
	}
	for most, want := range map[int64]string{4: "6789", 10: "0123456789", 100: "0123456789"} {
		content, info, err := ReadTail(path, most)
		if err != nil || string(content) != want || info.Size() != 10 {
			t.Errorf("the last %d bytes: %q, %v; want %q", most, content, err, want)
		}
	}
	var number int
	if err := ReadJSON(path, 10, &number); err == nil {
		t.Error("0123456789 is accepted as JSON")
	}
}

// A path that is empty, relative or leads elsewhere deletes nothing.
func TestRemoveAll(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top)
	folder, bait := filepath.Join(top, "ours"), filepath.Join(top, "theirs", "bait")
	for _, file := range []string{bait, filepath.Join(folder, "scratch", "deep", "file"), filepath.Join(folder, "bait")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "theirs"), filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][2]string{
		{folder, ""}, {"", "theirs"}, {"", ""}, {"ours", "ours/bait"}, {folder, folder}, {folder, folder + "/."}, {folder, top},
		{folder, filepath.Join(folder, "..", "theirs")}, {folder, filepath.Dir(bait)}, {folder, filepath.Join(folder, "link", "bait")},
	} {
		if err := RemoveAll(wrong[0], wrong[1]); err == nil {
			t.Errorf("RemoveAll(%q, %q) succeeds", wrong[0], wrong[1])
		}
	}
	for _, right := range []string{"scratch", "link", "gone"} {
		if err := RemoveAll(folder, filepath.Join(folder, right)); err != nil {
			t.Error(err)
		}
	}
	if err := RemoveAll(filepath.Join(top, "gone"), filepath.Join(top, "gone", "file")); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(folder)
	if _, stays := os.Stat(bait); err != nil || stays != nil || len(left) != 1 || left[0].Name() != "bait" {
		t.Errorf("left %v, %v; bait: %v; want the two baits alone", left, err, stays)
	}
}
