// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestBrokenPipe: mlenv run ... | head -3 ends the output, not the program. The test runs itself, as the program before the pipe.
func TestBrokenPipe(t *testing.T) {
	if os.Getenv("MLENV_TEST_PIPED") != "" {
		lost := 0
		d := newDisplay(outlive(os.Stdout, func() { lost++ }), 1)
		for lost == 0 {
			d.print("line")
		}
		d.print("another line")
		if lost == 1 {
			_, _ = os.Stderr.WriteString("still here") // the parent looks for it
		}
		os.Exit(0)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenPipe$")
	cmd.Env = append(os.Environ(), "MLENV_TEST_PIPED=1")
	cmd.Stdout, cmd.Stderr = writer, &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if _, err := reader.Read(make([]byte, 3)); err != nil {
		t.Error(err)
	}
	reader.Close()
	if err := cmd.Wait(); err != nil || !strings.Contains(problems.String(), "still here") {
		t.Errorf("it ended with %v, and printed %q; want it to go on without output", err, problems.String())
	}
}
