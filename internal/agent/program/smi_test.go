// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLimited(t *testing.T) {
	for _, test := range []struct{ args, own, want string }{
		{"", "GPU-1,GPU-3", "--id=GPU-1,GPU-3"},
		{"-L", "GPU-1", "-L --id=GPU-1"},
		{"--query-gpu=index --format=csv", "GPU-1", "--query-gpu=index --format=csv --id=GPU-1"},
		{"-q -i 3", "GPU-1", "-q -i 3"},
		{"-q --id=3", "GPU-1", "-q --id=3"},
		{"topo -m", "GPU-1", "topo -m"},
		{"--help", "GPU-1", "--help"},
		{"-L", "", "-L"},
		{"-L", "MIG-1", "-L"},
	} {
		if got := strings.Join(limited(strings.Fields(test.args), test.own), " "); got != test.want {
			t.Errorf("nvidia-smi %s with the GPUs %q: got %q, want %q", test.args, test.own, got, test.want)
		}
	}
}

func TestNextSMI(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	front, image := t.TempDir(), t.TempDir()
	if err := os.Symlink(self, filepath.Join(front, "nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	if _, err := nextSMI(front); err == nil {
		t.Error("the program found itself")
	}
	want := filepath.Join(image, "nvidia-smi")
	if err := os.WriteFile(want, []byte("#!/bin/sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := nextSMI(front + ":" + front + ":" + image); got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}
