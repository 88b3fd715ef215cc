// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
)

// TestBait runs the commands in a folder full of files that have the names of mlenv's own, one of them locked by a process: whatever folder
// a user is in, no command deletes, changes or adds a file there.
func TestBait(t *testing.T) {
	withoutCluster(t)
	t.Setenv("RANK", "")
	bait := t.TempDir()
	t.Chdir(bait)
	hash := strings.Repeat("a", 64)
	for _, name := range append(strings.Fields(`lock a/lock a/b/lock .cache/lock .new-x/file .gone-x/file nodes.json run.json receipt.json
		given.json
		step-train.json progress.json output.log mlenv-job-1/dump checkpoints/bait/step-1/state latest work/bait/out .bait/out
		.mlenv/lock .mlenv/runs/bait/lock .mlenv/runs/bait/nodes.json .mlenv/runs/x/lock .mlenv/environments/bait/lock .mlenv/work/bait/out
		.mlenv/venvs/x/lock .mlenv/trees/x`), ".mlenv/trees/"+hash+"/train.py") {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("bait "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("train.py", []byte(says+`open("out.txt", "a").write("x")`), 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open("a/lock")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	content := func() map[string]string {
		files := map[string]string{}
		err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				var text []byte
				text, err = os.ReadFile(name)
				files[name] = string(text)
			} else if err == nil {
				files[name+"/"] = ""
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	want := content()
	run := func() *cobra.Command { return RunCommand(mldevenv.Bundle) }
	here := []string{".", "train.py", "--local", "--launcher=torchrun", "--run-name=bait"}
	for _, command := range []struct {
		of    func() *cobra.Command
		args  []string
		fails bool
	}{
		{run, here, false}, {run, here, true}, // the name is taken
		{run, []string{".", "missing.py", "--local", "--run-name=mistake"}, true},
		{run, []string{"--local", "--resume-from=bait", "--run-name=resumed"}, false},
		{ListCommand, []string{"--local"}, false}, {StatusCommand, []string{"bait"}, false}, {ReceiptCommand, []string{"bait"}, false},
		{LogsCommand, []string{"bait", "--rank=1"}, false}, {CancelCommand, []string{"bait"}, true},
		{FetchCommand, []string{"bait", "--to=" + filepath.Join(t.TempDir(), "fetched")}, false},
		{PruneCommand, []string{"--local", "--yes", "bait", "resumed"}, false}, {PruneCommand, []string{"--local", "--yes"}, false},
	} {
		cmd := command.of()
		if printed, err := output(t, cmd, command.args...); (err != nil) != command.fails {
			t.Errorf("%s %q: %v\n%s", cmd.Name(), command.args, err, printed)
		}
		if diff := cmp.Diff(want, content()); diff != "" {
			t.Fatalf("%s %q touched the user's folder (-before +after):\n%s", cmd.Name(), command.args, diff)
		}
	}
}
