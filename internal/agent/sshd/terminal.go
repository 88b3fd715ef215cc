// SPDX-License-Identifier: Apache-2.0

package sshd

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal. Its device is what a shell has, and master is the other end.
type terminal struct{ master, device *os.File }

func openTerminal(size windowSize) (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0) //nolint:forbidigo // the kernel's
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	t := &terminal{master: master}
	var number uint32
	err = t.control(func(fd int) (err error) {
		number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		return errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	})
	if err == nil {
		t.device, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0) //nolint:forbidigo // as above
	}
	if err == nil {
		err = errors.Join(t.resize(size), t.control(inUTF8))
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	return t, nil
}

// inUTF8 makes the erase key delete a whole character.
func inUTF8(fd int) error {
	settings, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	settings.Iflag |= unix.IUTF8
	return unix.IoctlSetTermios(fd, unix.TCSETS, settings)
}

// control calls do without Fd, which would make reads block Close.
func (t *terminal) control(do func(fd int) error) error {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = do(int(fd)) }), failed)
}

// windowSize is a terminal's size as pty-req and window-change have it.
type windowSize struct{ Columns, Rows, Width, Height uint32 }

func (t *terminal) resize(s windowSize) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ,
			&unix.Winsize{Col: uint16(s.Columns), Row: uint16(s.Rows), Xpixel: uint16(s.Width), Ypixel: uint16(s.Height)})
	})
}

func (t *terminal) close() {
	t.master.Close()
	if t.device != nil {
		t.device.Close()
	}
}
