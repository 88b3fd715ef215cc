// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOthersForward(t *testing.T) {
	for link, tc := range map[string]struct {
		file, content string
		want          bool
	}{
		"eth0":    {file: "uevent", content: "INTERFACE=eth0\nIFINDEX=2\n"},
		"docker0": {file: "uevent", content: "DEVTYPE=bridge\nINTERFACE=docker0\nIFINDEX=3\n", want: true},
		"wg0":     {file: "uevent", content: "DEVTYPE=wireguard\nINTERFACE=wg0\nIFINDEX=4\n", want: true},
		"vpn":     {file: "tun_flags", content: "0x1001\n", want: true},
	} {
		networks := t.TempDir()
		if err := os.Mkdir(filepath.Join(networks, link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(networks, link, tc.file), []byte(tc.content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := othersForward(networks); got != tc.want {
			t.Errorf("with %s: %v, want %v", link, got, tc.want)
		}
	}
}
