// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// spied is the output of py-spy 0.4.3 for two ranks of a gloo training under torch 2.15. One rank loads a batch, and the
// other waits in all_reduce.
//
//go:embed testdata/py-spy-*.json
var spied embed.FS

// PySpy gives the agent a stand-in for its py-spy. It shows the process of node 1 loading a batch, and the processes of other
// nodes waiting.
func (n *Node) PySpy() {
	n.t.Helper()
	dir := n.t.TempDir()
	texts, err := fs.Sub(spied, "testdata")
	if err == nil {
		err = os.CopyFS(dir, texts)
	}
	if err == nil {
		err = n.Tool("py-spy", fmt.Sprintf(`#!/bin/sh
# dump --nonblocking --full-filenames --json --pid PID
what=waits
tr '\0' '\n' <"/proc/$6/environ" | grep -qx NODE_RANK=1 && what=loads
exec sed "s|PID|$6|; s|FOLDER|$(readlink "/proc/$6/cwd")|" '%s'/py-spy-$what.json
`, dir))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// Tool creates one of the agent's own programs.
func (n *Node) Tool(name, script string) error {
	folder := filepath.Join(n.Config.Paths.Home, "bin")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name), []byte(script), 0o755)
}
