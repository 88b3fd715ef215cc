// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type mount struct{ target, fsType string }

// mountsBelow lists the mounts at dir or below it, in mount order.
func mountsBelow(dir string) ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []mount
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		if !ok {
			continue
		}
		fields := strings.Fields(before)
		if len(fields) < 5 {
			continue
		}
		target := unescape(fields[4])
		if target != dir && !strings.HasPrefix(target, dir+"/") {
			continue
		}
		fsType, _, _ := strings.Cut(after, " ")
		mounts = append(mounts, mount{target: target, fsType: fsType})
	}
	return mounts, lines.Err()
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// MountedBelow lists the mount points at dir or below it.
func MountedBelow(dir string) ([]string, error) {
	mounts, err := mountsBelow(dir)
	var targets []string
	for _, m := range mounts {
		targets = append(targets, m.target)
	}
	return targets, err
}

// MountAbove returns the mount point that the path lies on.
func MountAbove(path string) (string, error) {
	mounts, err := mountsBelow("")
	if err != nil {
		return "", err
	}
	above := "/"
	for _, m := range mounts {
		if len(m.target) > len(above) && strings.HasPrefix(path+"/", m.target+"/") {
			above = m.target
		}
	}
	return above, nil
}

// UnmountBelow unmounts everything at dir or below it, last mounted first.
func UnmountBelow(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		err := unix.Unmount(mounts[i].target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// EINVAL: unmounting a shared peer has already removed this mount.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmounting %s: %w", mounts[i].target, err)
		}
	}
	return nil
}

// ShareMount makes dir a mount of its own. Its later submounts propagate to every namespace that was cloned from this
// one, as the kubelet and containerd require.
func ShareMount(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.target == dir {
			return nil
		}
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding %s to itself: %w", dir, err)
	}
	// Make the mount private first, because below a shared parent the new mount would become a peer.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making %s private: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making %s shared: %w", dir, err)
	}
	return nil
}
