// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(time.Now().String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// next returns the next change.
func next(t *testing.T, changes <-chan Change) []string {
	t.Helper()
	const timeForTheChangeToBeReported = time.Minute
	select {
	case change := <-changes:
		if change.Problem != nil {
			t.Error(change.Problem)
		}
		return change.Paths
	case <-time.After(timeForTheChangeToBeReported):
		t.Fatal("no change was reported")
		return nil
	}
}

// The test runs the real watcher on a real folder.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "train.py")
	write(t, dir, "out/x")
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("out/\n*.log\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := Folder(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, next(t, changes)); diff != "" {
			t.Errorf("paths (-want +got):\n%s", diff)
		}
	}
	// If a path that is left out were reported, it would be reported together with the next change.
	write(t, dir, "out/x")
	write(t, dir, "a.log")
	write(t, dir, "train.py")
	expect("train.py")
	made := t.TempDir()
	write(t, made, "layers/attention.py")
	if err := os.Rename(made, filepath.Join(dir, "model")); err != nil { // all at once
		t.Fatal(err)
	}
	expect("model")
	write(t, dir, "model/layers/attention.py")
	expect("model/layers/attention.py")
	if err := os.Remove(filepath.Join(dir, "train.py")); err != nil {
		t.Fatal(err)
	}
	expect("train.py")
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("model/\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(".gitignore")
	write(t, dir, "model/layers/attention.py")
	write(t, dir, "a.log")
	expect("a.log")
	cancel()
	if _, more := <-changes; more {
		t.Error("a change after the end")
	}
}

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events, changes := make(chan fsnotify.Event), make(chan Change)
		asked := 0
		f := &folder{dir: "/", watcher: &fsnotify.Watcher{Events: events}}
		go f.run(ctx, changes, func() error {
			asked++
			return errors.New("asked")
		})
		began := time.Now()
		var told []string
		take := func() {
			change := <-changes
			told = append(told, fmt.Sprint(change, " after ", time.Since(began).Round(10*time.Millisecond), ", ", change.Problem))
			began = time.Now()
		}
		events <- fsnotify.Event{Name: "/b"}
		events <- fsnotify.Event{Name: "/a"}
		events <- fsnotify.Event{Name: "/b"}
		take()
		// Without a pause Watch reports the changes nevertheless. No path comes at that moment, because the order of the
		// two would be undefined.
		go func() {
			for range 30 {
				events <- fsnotify.Event{Name: "/c"}
				time.Sleep(quiet * 3 / 5)
			}
		}()
		take()
		take()
		// The receiver does not take a change for a while.
		events <- fsnotify.Event{Name: "/d"}
		time.Sleep(time.Hour)
		events <- fsnotify.Event{Name: "/e"}
		time.Sleep(time.Hour)
		take()
		want := []string{"a, b changed after 150ms, asked", "c changed after 2s, asked", "c changed after 760ms, asked",
			"d, e changed after 2h0m0s, asked"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if asked != 5 {
			t.Errorf("asked %d times, want 5", asked)
		}
	})
}

func TestChangeInWords(t *testing.T) {
	for want, paths := range map[string][]string{
		"a changed":                         {"a"},
		"a, b, c changed":                   {"a", "b", "c"},
		"a, b, c and 2 other paths changed": {"a", "b", "c", "d", "e"},
	} {
		if got := (Change{Paths: paths}).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
