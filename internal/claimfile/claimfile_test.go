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
	listener, err := net.Listen("unix", at("socket"))
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
		if _, _, err := Tail(path, 100); !errors.Is(err, ErrNotRegular) {
			t.Errorf("reading the end of a %s: %v, want %v", name, err, ErrNotRegular)
		}
		if file, err := Append(path); err == nil {
			file.Close()
			t.Errorf("a %s is opened for writing", name)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "missing"), 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a missing file: %v, want %v", err, fs.ErrNotExist)
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
		content, info, err := Tail(path, most)
		if err != nil || string(content) != want || info.Size() != 10 {
			t.Errorf("the last %d bytes: %q, %v; want %q", most, content, err, want)
		}
	}
	var number int
	if err := ReadJSON(path, 10, &number); err == nil {
		t.Error("0123456789 is accepted as JSON")
	}
}
