// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// pseudoTerminal returns a terminal, and what reads its output.
func pseudoTerminal(t *testing.T) (terminal, reader *os.File) {
	t.Helper()
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { reader.Close() })
	if err := unix.IoctlSetPointerInt(int(reader.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return terminal, reader
}

// TestNothingSteersTheTerminal: a command that prints a text of others as it is does not pass on its control characters.
func TestNothingSteersTheTerminal(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;title\x07A\x9b31mB\u009b31mC\u202eD\r\n"
	for _, where := range []string{"stdout", "stderr", "error", "usage"} {
		t.Run(where, func(t *testing.T) {
			terminal, reader := pseudoTerminal(t)
			root := &cobra.Command{Use: "mlenv", RunE: func(cmd *cobra.Command, _ []string) error {
				switch where {
				case "stdout":
					fmt.Fprint(cmd.OutOrStdout(), hostile)
				case "stderr":
					fmt.Fprint(cmd.ErrOrStderr(), hostile)
				case "error":
					return fmt.Errorf("%s", hostile)
				}
				return nil
			}}
			var args []string
			if where == "usage" {
				args = []string{"--" + hostile}
			}
			RunCommands(t.Context(), root, args, terminal, terminal)
			fmt.Fprint(terminal, "end\n")
			var got strings.Builder
			for buffer := make([]byte, 1000); !strings.Contains(got.String(), "end\r\n"); {
				n, err := reader.Read(buffer)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(buffer[:n])
			}
			text := strings.ReplaceAll(got.String(), "\r\n", "\n") // the terminal's own
			if strings.ContainsAny(text, "\x1b\x07\r\u009b\u202e") || strings.Contains(text, "\x9b") || !strings.Contains(text, "A\ufffd31mB") {
				t.Errorf("got %q", text)
			}
		})
	}
}

// TestFilesGetEveryByte: only terminals are protected; a program reads what was written.
func TestFilesGetEveryByte(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := newOutputs(t.Context())
	out := all.writerFor(file)
	if _, err := out.Write([]byte("\x1b[2J")); err != nil || RawTerminal(out) != nil || Unfiltered(out) != out {
		t.Error("a file is a terminal")
	}
	if err := all.flush(); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(file.Name()); err != nil || string(content) != "\x1b[2J" {
		t.Errorf("got %q, %v", content, err)
	}
	terminal, _ := pseudoTerminal(t)
	raw := RawTerminal(all.writerFor(terminal))
	if raw == nil || raw.file != terminal || RawTerminal(Unfiltered(all.writerFor(terminal))) != nil {
		t.Error("the terminal cannot be reached")
	}
}
