// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const forwarding = "net/ipv4/ip_forward"

// kernelSettings are the host's settings that the cluster changes, with its values. EnableForwarding changes the first one, the kubelet
// changes the rest when it starts.
var kernelSettings = map[string]string{
	forwarding:                  "1",
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// ReadSettings returns the present values of the settings that the cluster will change.
func ReadSettings() (map[string]string, error) {
	values := map[string]string{}
	for name := range kernelSettings {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading kernel setting: %w", err)
		}
		values[name] = strings.TrimSpace(string(value))
	}
	return values, nil
}

// RestoreSettings restores the values of ReadSettings. A setting that somebody else has changed since stays, and so does forwarding while
// another network of this machine may need it.
func RestoreSettings(values map[string]string) error {
	var problems []error
	for name, value := range values {
		path := filepath.Join("/proc/sys", name)
		now, err := os.ReadFile(path)
		if err == nil && (strings.TrimSpace(string(now)) != kernelSettings[name] || name == forwarding && othersForward(networks)) {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			problems = append(problems, fmt.Errorf("restoring kernel setting: %w", err))
		}
	}
	return errors.Join(problems...)
}

const networks = "/sys/class/net"

// othersForward reports whether one of the machine's networks is a bridge or a tunnel, as of containers, virtual machines and VPNs.
func othersForward(networks string) bool {
	links, _ := os.ReadDir(networks)
	return slices.ContainsFunc(links, func(link os.DirEntry) bool {
		dir := filepath.Join(networks, link.Name())
		kind, _ := os.ReadFile(filepath.Join(dir, "uevent"))
		_, err := os.Stat(filepath.Join(dir, "tun_flags"))
		return err == nil || strings.Contains(string(kind), "DEVTYPE=bridge\n") || strings.Contains(string(kind), "DEVTYPE=wireguard\n")
	})
}

// EnableForwarding lets the host route between its network and the bridge.
func EnableForwarding() error {
	return os.WriteFile(filepath.Join("/proc/sys", forwarding), []byte(kernelSettings[forwarding]), 0o644)
}

// BootID returns an ID that differs between two boots of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
