// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kernelSettings are the host's settings that the cluster changes. EnableForwarding changes the first one, the kubelet
// changes the rest when it starts.
var kernelSettings = []string{
	"net/ipv4/ip_forward",
	"vm/overcommit_memory",
	"vm/panic_on_oom",
	"kernel/panic",
	"kernel/panic_on_oops",
	"kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes",
}

// ReadSettings returns the present values of the settings that the cluster will change.
func ReadSettings() (map[string]string, error) {
	values := map[string]string{}
	for _, name := range kernelSettings {
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

// RestoreSettings restores the values of ReadSettings.
func RestoreSettings(values map[string]string) error {
	var problems []error
	for name, value := range values {
		path := filepath.Join("/proc/sys", name)
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			problems = append(problems, fmt.Errorf("restoring kernel setting: %w", err))
		}
	}
	return errors.Join(problems...)
}

// EnableForwarding lets the host route between its network and the bridge.
func EnableForwarding() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// BootID returns an ID that differs between two boots of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
