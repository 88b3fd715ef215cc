// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// libraryLayout is an entry of layouts.json: what a real library wrote, listed by test/images/layouts/generate.py.
type libraryLayout struct {
	Case, Row, Versions string
	// Before are the files when the first checkpoint was complete, Writes those that the library wrote after that, in order.
	Before, Writes []libraryFile
	// Complete has each checkpoint after the number of writes that complete it.
	Complete [][2]any
}

// libraryFile is a file with the bytes that matter. Written is the name until it is renamed.
type libraryFile struct {
	Path, Written string
	Size          int64
	Head, Tail    []byte
}

func (f libraryFile) content() []byte {
	content := make([]byte, f.Size)
	copy(content, f.Head)
	copy(content[f.Size-int64(len(f.Tail)):], f.Tail)
	return content
}

// isMark reports whether the file names a checkpoint next to it.
func (f libraryFile) isMark() bool { return f.Path == deepSpeedMark }

func libraryLayouts(t *testing.T) (all []libraryLayout) {
	t.Helper()
	content, err := os.ReadFile("../../../test/images/layouts/layouts.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// after returns the checkpoint that is complete after the number of writes.
func (l libraryLayout) after(writes int) (name string) {
	for _, c := range l.Complete {
		if at, _ := c[0].(float64); name == "" || int(at) <= writes {
			name, _ = c[1].(string)
		}
	}
	return name
}

func (l libraryLayout) writeBefore(t *testing.T, dir string) {
	t.Helper()
	for _, file := range l.Before {
		putFile(t, filepath.Join(dir, file.Path), file.content())
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, hourAgo, hourAgo)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for i, file := range l.Before {
		at := hourAgo.Add(time.Duration(i) * time.Second)
		if err := os.Chtimes(filepath.Join(dir, file.Path), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func putFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLayoutsOfLibraries interrupts each library before, within and after each of its writes.
func TestLayoutsOfLibraries(t *testing.T) {
	for _, l := range libraryLayouts(t) {
		t.Run(l.Case, func(t *testing.T) {
			dir := t.TempDir()
			l.writeBefore(t, dir)
			newest := func(when string, wants ...string) {
				t.Helper()
				found, err := findCheckpoints(t.Context(), dir, agent.CheckpointSearch{All: true, World: 2})
				if err != nil {
					t.Fatal(err)
				}
				got := "none"
				if i := slices.IndexFunc(found, func(c agent.Checkpoint) bool { return c.Missing == "" }); i >= 0 {
					got = found[i].Name
				}
				if !slices.Contains(wants, got) {
					t.Errorf("%s: %s: got %s, want %s; found %+v", l.Versions, when, got, wants, found)
				}
			}
			newest("before", l.after(0))
			for i, file := range l.Writes {
				wants := []string{l.after(i)}
				if file.isMark() {
					wants = append(wants, l.after(i+1))
				}
				written := filepath.Join(dir, file.Path)
				if file.Written != "" {
					written = filepath.Join(dir, file.Written)
				}
				for _, size := range []int64{0, file.Size / 2} {
					putFile(t, written, file.content()[:size])
					if size == 0 || showsEnd(file) {
						newest("within the write of "+file.Path, wants...)
					}
				}
				putFile(t, written, file.content())
				if file.Written != "" {
					newest("before the rename to "+file.Path, wants...)
					if err := os.Rename(written, filepath.Join(dir, file.Path)); err != nil {
						t.Fatal(err)
					}
				}
				newest("after the write of "+file.Path, l.after(i+1))
			}
		})
	}
}

// showsEnd reports whether the first half of a file shows that it is one.
func showsEnd(file libraryFile) bool {
	return file.isMark() || filepath.Base(file.Path) == torchMetadata || bytes.HasPrefix(file.Head, []byte("PK")) ||
		slices.Contains([]string{".safetensors", ".json"}, filepath.Ext(file.Path))
}
