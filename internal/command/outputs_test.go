// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// manyLines is more than what may wait and what a pipe takes.
const manyLines = 3 * mostUnwritten / 100

// line returns a line of 100 bytes.
func line(i int) string { return fmt.Sprintf("%099d\n", i) }

func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	return reader, writer
}

// TestStuckReader: a step, and any other program that has more to do, goes on while nothing reads its output. What it did not keep is
// counted once there is a reader again.
func TestStuckReader(t *testing.T) {
	reader, writer := pipe(t)
	var read bytes.Buffer
	reads := make(chan error, 1)
	step := &cobra.Command{Use: "train", RunE: func(cmd *cobra.Command, _ []string) error {
		for i := range manyLines {
			Log(cmd).Info(strings.TrimSpace(line(i)))
		}
		go func() {
			_, err := io.Copy(&read, reader)
			reads <- err
		}()
		_, err := fmt.Fprint(cmd.OutOrStdout(), "the last words\n") // waits for the reader
		return err
	}}
	if code := Run(t.Context(), step, nil, writer, writer); code != Done {
		t.Errorf("exit code %d", code)
	}
	writer.Close()
	if err := <-reads; err != nil {
		t.Fatal(err)
	}
	got := strings.SplitAfter(strings.TrimSuffix(read.String(), "\n"), "\n")
	kept := len(got) - 2
	for i, text := range got[:kept] {
		if text != line(i) {
			t.Fatalf("line %d is %q", i, text)
		}
	}
	want := fmt.Sprintf("... %d lines not shown: nothing read this output\n", manyLines-kept)
	if got[kept] != want || got[kept+1] != "the last words" {
		t.Errorf("got %q, want %q before the last words", got[kept:], want)
	}
}

// TestPausedReader: what a command was asked for is not dropped. It waits for its reader until the program is told to end.
func TestPausedReader(t *testing.T) {
	reader, writer := pipe(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	logs := &cobra.Command{Use: "logs", RunE: func(cmd *cobra.Command, _ []string) error {
		for i := 0; ; i++ {
			if _, err := fmt.Fprint(cmd.OutOrStdout(), line(i)); err != nil {
				return err
			}
		}
	}}
	ended := make(chan int, 1)
	go func() { ended <- RunCommands(ctx, logs, nil, writer, io.Discard) }()
	read := make([]byte, manyLines*100)
	if _, err := io.ReadFull(reader, read); err != nil {
		t.Fatal(err)
	}
	for i := range manyLines {
		if got := string(read[i*100 : (i+1)*100]); got != line(i) {
			t.Fatalf("line %d is %q", i, got)
		}
	}
	interrupt()
	if code := <-ended; code != Interrupted {
		t.Errorf("exit code %d", code)
	}
}

// TestOneOrder: the outputs of a program that are the same terminal have its words in their order.
func TestOneOrder(t *testing.T) {
	reader, writer := pipe(t)
	cmd := &cobra.Command{Use: "mlenv", RunE: func(cmd *cobra.Command, _ []string) error {
		for i := range 100 {
			fmt.Fprintln(cmd.OutOrStdout(), 2*i)
			fmt.Fprintln(cmd.ErrOrStderr(), 2*i+1)
		}
		return nil
	}}
	RunCommands(t.Context(), cmd, nil, writer, writer)
	writer.Close()
	for i := range 200 {
		var got int
		if _, err := fmt.Fscanln(reader, &got); err != nil || got != i {
			t.Fatalf("got %d, %v; want %d", got, err, i)
		}
	}
}

// TestFullDisk: a command whose output cannot be written has failed.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	var problems bytes.Buffer
	cmd := &cobra.Command{Use: "mlenv", RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprint(cmd.OutOrStdout(), "receipt\n")
		return err
	}}
	code := RunCommands(t.Context(), cmd, nil, full, &problems)
	if code != Failed || !strings.Contains(problems.String(), "writing the output: write /dev/full: no space left on device") {
		t.Errorf("exit code %d: %s", code, problems.String())
	}
}

// TestLostTail: also what was lost last is counted, for each output on its own, and in the form of its log.
func TestLostTail(t *testing.T) {
	reader, writer := pipe(t)
	var read bytes.Buffer
	reads := make(chan error, 1)
	var document bytes.Buffer
	step := &cobra.Command{Use: "train", RunE: func(cmd *cobra.Command, _ []string) error {
		for i := range manyLines {
			Log(cmd).Info(strings.TrimSpace(line(i)))
		}
		go func() {
			_, err := io.Copy(&read, reader)
			reads <- err
		}()
		return nil
	}}
	if code := Run(t.Context(), step, []string{"--log-format=json"}, writer, &document); code != Done {
		t.Errorf("exit code %d", code)
	}
	writer.Close()
	if err := <-reads; err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(read.String()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, `{"level":"WARN","msg":"... `) || !strings.HasSuffix(last, ` lines not shown: nothing read this output"}`) {
		t.Errorf("the last line is %q", last)
	}
}
