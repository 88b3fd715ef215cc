// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Until the terminal is released, a key arrives without Enter, and Ctrl-C arrives as a key.
func TestTakeKeys(t *testing.T) {
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	defer user.Close()
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	cooked := func() bool {
		state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return state.Lflag&unix.ICANON != 0
	}
	release := passKeysOn(terminal)
	if release == nil || cooked() {
		t.Fatal("the terminal waits for Enter")
	}
	if _, err := user.Write([]byte{'d', ctrlC}); err != nil {
		t.Fatal(err)
	}
	typed := make(chan event, 3)
	go readKeys(terminal, func(e event) { typed <- e })
	if first, second := <-typed, <-typed; first != key('d') || second != key(ctrlC) {
		t.Errorf("got keys %q and %q, want d and Ctrl-C", first, second)
	}
	release()
	if !cooked() {
		t.Error("the terminal's settings were not restored")
	}
}
