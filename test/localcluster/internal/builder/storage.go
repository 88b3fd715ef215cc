// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

const storageConf = "/etc/containers/storage.conf"

// prepareStorage prepares the storage folder for images. It mounts a disk of the given size, if there is a size, and
// sets overlay as the driver: the kernel's overlay if the kernel can mount one here, otherwise fuse-overlayfs.
func prepareStorage(dir, size string) error {
	if size != "" {
		quantity, err := resource.ParseQuantity(size)
		if err != nil {
			return fmt.Errorf("reading the size of the build's disk %q: %w", size, err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", quantity.Value())); err != nil {
			return fmt.Errorf("creating a disk of %s: %w", size, err)
		}
	}
	config := "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"" + dir +
		"\"\n[storage.options.overlay]\n"
	if err := tryOverlay(dir); err != nil {
		config += "mount_program = \"/usr/bin/fuse-overlayfs\"\n"
	}
	if err := os.MkdirAll(filepath.Dir(storageConf), 0o755); err != nil {
		return err
	}
	return os.WriteFile(storageConf, []byte(config), 0o644)
}

// empty deletes the content of the folder, as far as possible.
func empty(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		// A folder that is still mounted stays until the pod is deleted.
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// tryOverlay mounts an overlay in the folder and removes it again.
func tryOverlay(dir string) (err error) {
	temp, err := os.MkdirTemp(dir, "overlay-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(temp, sub), 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", temp)
	merged := filepath.Join(temp, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	return unix.Unmount(merged, 0)
}
