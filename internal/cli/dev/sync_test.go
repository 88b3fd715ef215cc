// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

// "Watching ." reads like an unfinished sentence.
func TestFolderHasAName(t *testing.T) {
	f := folder{Folder: syncrepo.Folder{Dir: ".", RequirementsTimeout: 1}}
	if err := f.check(); err != nil || filepath.Base(f.Dir) != "dev" {
		t.Errorf("folder %q, %v; want its path", f.Dir, err)
	}
}

// TestSendNamesIgnoredFiles: without this error, pip and the launcher would only report that the files are missing on the
// nodes.
func TestSendNamesIgnoredFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"train.py": "", "requirements.txt": "einops\n", ".gitignore": "*.txt\n",
		".mlenvignore": "train.py\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := folder{Folder: syncrepo.Folder{Dir: dir, Requirements: "requirements.txt"}, script: "train.py", launcher: "torchrun"}
	err := f.send(t.Context(), slog.New(slog.DiscardHandler), nil)
	if fail.ReasonOf(err) != fail.ScriptNotFound || !strings.Contains(err.Error(), "sending script train.py") ||
		!strings.Contains(err.Error(), "sending requirements requirements.txt") {
		t.Errorf("got %v, want both files", err)
	}
}

// TestAbsoluteScript: a path as a shell completes it means the file in the folder.
func TestAbsoluteScript(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{filepath.Join(dir, "train.py"), "A=1"}, {"train.py", "A=1"}, {"/opt/train.py", "A=1"},
		{"-m", "model.train", "A=1"}} {
		cmd := devCommand()
		if err := cmd.ParseFlags(append([]string{"--dir=" + dir}, args...)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	s := session{folder: folder{Folder: syncrepo.Folder{Dir: dir, Requirements: filepath.Join(dir, "pip.txt"), RequirementsTimeout: 1}}}
	if err := s.check(); err != nil || s.Requirements != "pip.txt" {
		t.Errorf("requirements %q, %v; want pip.txt", s.Requirements, err)
	}
	s.options.Script, s.options.DeepSpeedConfig = filepath.Join(dir, "src", "train.py"), "/etc/ds.json"
	if s.inFolder(); s.options.Script != "src/train.py" || s.options.DeepSpeedConfig != "/etc/ds.json" {
		t.Errorf("script %q, configuration %q; want the file in the folder and the one on the nodes", s.options.Script, s.options.DeepSpeedConfig)
	}
}
