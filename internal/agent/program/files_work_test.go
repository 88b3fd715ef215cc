// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

func write(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestListOfWorkingDirectory: of a job in progress only what it wrote is listed. What cannot be copied is named and keeps nothing else
// away, and for a path that does not exist the list has what there is.
func TestListOfWorkingDirectory(t *testing.T) {
	workspace, source := t.TempDir(), t.TempDir()
	write(t, source, map[string]string{"train.py": "x", "pkg/lib.py": "y", "conf/a.yaml": "a"})
	m, err := tree.Scan(t.Context(), source, nil)
	if err != nil {
		t.Fatal(err)
	}
	trees, err := treestore.Open(filepath.Join(workspace, ".mlenv/trees"), filepath.Join(workspace, "repo"))
	if err != nil {
		t.Fatal(err)
	}
	_, missing, err := trees.Plan(m, m.Hash())
	if err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	if err := tree.WriteContents(t.Context(), &sent, source, m, missing, nil); err != nil {
		t.Fatal(err)
	}
	if err := trees.Receive(t.Context(), m.Hash(), 0, &sent); err != nil {
		t.Fatal(err)
	}
	work, err := trees.CreateWork(m.Hash(), "uid", "node")
	if err != nil {
		t.Fatal(err)
	}
	write(t, work, map[string]string{"out/model": "weights", "conf/a.yaml": "changed"})
	write(t, workspace, map[string]string{"checkpoints/mine/model": "weights"})
	for link, target := range map[string]string{"data": "/datasets/x", "last": "out/model", "up": "../../trees", "out/other": "model"} {
		if err := os.Symlink(target, filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(work, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(paths ...string) (found agent.FilePage, names string) {
		t.Helper()
		const long = 60
		request, err := json.Marshal(agent.PageRequest{Paths: paths, Seconds: long})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := RunFileCommand([]string{"page", workspace}, bytes.NewReader(request), &out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &found); err != nil {
			t.Fatal(err)
		}
		for _, e := range found.Entries {
			names += " " + strings.TrimPrefix(e.Path, agent.WorkFolder+"/")
		}
		slices.Sort(found.LeftOut)
		return found, strings.TrimSpace(names)
	}
	at := func(name string) string { return agent.WorkFolder + "/uid" + name }
	found, names := list(at(""), "checkpoints/mine")
	if want := "uid/conf/a.yaml uid/last uid/out/model uid/out/other checkpoints/mine/model"; names != want {
		t.Errorf("list: %s; want %s", names, want)
	}
	if diff := cmp.Diff([]string{at("/data"), at("/fifo"), at("/up")}, found.LeftOut); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	if _, names := list(at("/out"), at("/conf")); names != "uid/conf/a.yaml uid/out/model uid/out/other" {
		t.Errorf("of two folders: %s", names)
	}
	found, names = list(at("/nosuch"), at("/pkg"), at("/train.py"), at("/out/model/x"), "checkpoints/yours/model")
	if names != "" || len(found.Absent) != 5 {
		t.Errorf("%s, absent %q; want all five absent", names, found.Absent)
	}
	want := map[string]agent.Near{
		at("/nosuch"):             {Folder: at(""), Names: []string{"conf", "data", "fifo", "last", "out", "up"}},
		"checkpoints/yours/model": {Folder: "checkpoints", Names: []string{"mine"}},
	}
	for path, near := range want {
		if diff := cmp.Diff(near, found.Near[path]); diff != "" {
			t.Errorf("near %s (-want +got):\n%s", path, diff)
		}
	}

	var out bytes.Buffer
	if err := RunFileCommand([]string{"remove", workspace, at(""), agent.WorkFolder + "/.uid", at("-2")}, nil, &out); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(workspace, agent.WorkFolder)); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, path := range []string{".", "../x", "/etc"} {
		if err := RunFileCommand([]string{"remove", workspace, path}, nil, &out); err == nil {
			t.Errorf("%s was removed", path)
		}
	}
}
