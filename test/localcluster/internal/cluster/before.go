// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// before is the state of the machine before the cluster was created.
type before struct {
	// Boot is the ID of the machine's start. Settings and modules do not outlive it.
	Boot     string
	Settings map[string]string
	// BridgeFilter reports whether the kernel filtered bridged packets.
	BridgeFilter bool
	// Created are the folders and files that did not exist.
	Created []string
	// NetnsMounted reports whether /run/netns was already a mount.
	NetnsMounted bool
}

func beforePath() string { return topology.State("before.json") }

// rememberHost records once what down must restore, and creates the folders over which nodes mount their own folders.
func rememberHost() error {
	if _, err := os.Stat(beforePath()); err == nil {
		return nil
	}
	settings, err := host.ReadSettings()
	if err != nil {
		return err
	}
	boot, err := host.BootID()
	if err != nil {
		return err
	}
	b := before{Boot: boot, Settings: settings, BridgeFilter: host.FiltersBridges()}
	binds := append(slices.Collect(maps.Keys(nodeBinds(topology.Node(1)))), infinibandDir)
	targets := append([]string{"/run/netns", "/run/xtables.lock"}, binds...)
	for _, target := range targets {
		if _, err := os.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			b.Created = append(b.Created, target)
		}
	}
	mounted, err := host.MountedBelow("/run/netns")
	if err != nil {
		return err
	}
	b.NetnsMounted = len(mounted) > 0
	content, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := os.WriteFile(beforePath(), content, 0o644); err != nil {
		return err
	}
	for _, target := range binds {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// restoreHost restores what rememberHost recorded.
func restoreHost(ctx context.Context) error {
	content, err := os.ReadFile(beforePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var b before
	if err := json.Unmarshal(content, &b); err != nil {
		return fmt.Errorf("reading %s: %w", beforePath(), err)
	}
	if boot, err := host.BootID(); err == nil && boot == b.Boot {
		if err := host.RestoreSettings(b.Settings); err != nil {
			return err
		}
		if !b.BridgeFilter {
			host.UnloadBridgeFilter(ctx)
		}
	}
	if entries, err := os.ReadDir("/run/netns"); err == nil && len(entries) == 0 && !b.NetnsMounted {
		if err := unix.Unmount("/run/netns", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmounting /run/netns: %w", err)
		}
	}
	for _, path := range b.Created {
		// Files that others have created there since stay.
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}
