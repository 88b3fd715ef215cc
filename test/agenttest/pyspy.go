package agenttest

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// spied is the output of py-spy 0.4.3 for two ranks of a gloo training under torch 2.15. One rank loads a batch, and the
// other waits in all_reduce.
//
//go:embed testdata/py-spy-*.json
var spied embed.FS

// PySpy returns a PATH with a stand-in for py-spy. It shows the process of node 1 loading a batch, and those of other
// nodes waiting.
func PySpy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	texts, err := fs.Sub(spied, "testdata")
	if err == nil {
		err = os.CopyFS(dir, texts)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "py-spy"), []byte(`#!/bin/sh
# dump --nonblocking --full-filenames --json --pid PID
what=waits
tr '\0' '\n' <"/proc/$6/environ" | grep -qx NODE_RANK=1 && what=loads
exec sed "s|PID|$6|; s|FOLDER|$(readlink "/proc/$6/cwd")|" "${0%/*}/py-spy-$what.json"
`), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir + ":" + os.Getenv("PATH")
}
