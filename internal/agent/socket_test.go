// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// TestSocketInLongFolder listens and connects in a folder whose name is longer than the kernel accepts for a socket.
func TestSocketInLongFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("long folder ", 12), "run", "agent.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Listen("unix", path); err == nil {
		t.Fatalf("the kernel accepts the name %s", path)
	}
	name, folder, err := agent.OpenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	listener, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("got %v, %v; want a socket", info, err)
	}
	// The peer has a descriptor of its own.
	again, itsFolder, err := agent.OpenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer itsFolder.Close()
	conn, err := net.Dial("unix", again)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}
