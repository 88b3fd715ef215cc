// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestRun(t *testing.T) {
	failure := fail.Advise(fail.Becausef(fail.GPUMissing, "checking node 1: 3 GPUs, want 4"), "mlenv doctor")
	tests := []struct {
		name           string
		args           []string
		err            error
		code           int
		stdout, stderr string
		reason         string
	}{
		{"done", nil, nil, Done, "working\n", "", ""},
		{"failed", nil, failure, Failed, "working\nprobe failed: GPUMissing: checking node 1: 3 GPUs, want 4\n  next: mlenv doctor\n", "",
			"GPUMissing"},
		{"failed without a reason", nil, errors.New("odd"), Failed, "working\nprobe failed: Internal: odd\n", "", "Internal"},
		{"failed although a request was cancelled", nil, context.Canceled, Failed, "working\nprobe failed: Internal: context canceled\n", "",
			"Internal"},
		{"failed, and told already", nil, &Exit{Code: Failed, Err: failure, Told: true}, Failed, "working\n", "", "GPUMissing"},
		{"unknown flag", []string{"--speed=1"}, nil, WrongUsage, "", "probe: unknown flag: --speed\nRun 'probe --help' for usage.\n",
			"InvalidInput"},
		{"unknown log format", []string{"--log-format=xml"}, nil, WrongUsage, "", "probe: --log-format \"xml\": want text or json\nRun 'probe " +
			"--help' for usage.\n", "InvalidInput"},
		{"several mistakes", []string{"--log-format=xml", "--every=soon"}, nil, WrongUsage, "",
			"probe: --log-format \"xml\": want text or json\n  --every \"soon\": want a duration such as 40m or 24h\nRun 'probe --help' for " +
				"usage.\n", "InvalidInput"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := &cobra.Command{Use: "probe", RunE: func(cmd *cobra.Command, _ []string) error {
				Log(cmd).Info("working")
				return test.err
			}}
			cmd.Flags().Duration("every", 0, "")
			var stdout, stderr bytes.Buffer
			args := append([]string{"--reason-result=" + filepath.Join(dir, "reason"), "--message-result=" + filepath.Join(dir, "message")},
				test.args...)
			if code := Run(context.Background(), cmd, args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(test.stdout, stdout.String()); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.stderr, stderr.String()); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "reason")); string(got) != test.reason {
				t.Errorf("result reason %q, want %q", got, test.reason)
			}
		})
	}
}

// TestInterrupted: if SIGTERM or Ctrl-C ends a step, its failure has a known cause.
func TestInterrupted(t *testing.T) {
	cmd := &cobra.Command{Use: "probe", RunE: func(cmd *cobra.Command, _ []string) error {
		<-cmd.Context().Done()
		return fmt.Errorf("fetching: %w", cmd.Context().Err())
	}}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var out bytes.Buffer
	const want = "probe failed: Cancelled: interrupted: fetching: context canceled\n"
	if code := Run(ctx, cmd, nil, &out, &out); code != Interrupted || out.String() != want {
		t.Errorf("exit code %d, %q", code, out.String())
	}
}

func TestRunCommands(t *testing.T) {
	failure := fail.Advise(fail.Becausef(fail.GPUMissing, "checking node 1: 3 GPUs, want 4"), "mlenv doctor")
	const usage = "Run 'tool probe --help' for usage.\n"
	tests := []struct {
		name   string
		args   []string
		err    error
		code   int
		stderr string
	}{
		{"done", []string{"--to=x"}, nil, Done, ""},
		{"failed", []string{"--to=x"}, failure, Failed, "tool probe failed: GPUMissing: checking node 1: 3 GPUs, want 4\n  next: mlenv doctor\n"},
		{"a missing flag", nil, nil, WrongUsage, "tool probe: required flag(s) \"to\" not set\n" + usage},
		{"several mistakes", []string{"--every=soon", "every=x", "--often=no"}, nil, WrongUsage,
			"tool probe: --every \"soon\": want a duration such as 40m or 24h\n  --often \"no\": want true or false\n" + usage},
		{"wrong usage that the cluster finds", []string{"--to=x"}, &Exit{Code: WrongUsage, Err: failure}, WrongUsage,
			"tool probe: checking node 1: 3 GPUs, want 4\n  next: mlenv doctor\n" + usage},
		{"printed already", []string{"--to=x"}, &Exit{Code: Interrupted}, Interrupted, ""},
		{"cancelled", []string{"--to=x"}, &Exit{Code: Interrupted, Err: failure}, Interrupted,
			"tool probe failed: GPUMissing: checking node 1: 3 GPUs, want 4\n  next: mlenv doctor\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := &cobra.Command{Use: "probe", RunE: func(*cobra.Command, []string) error { return test.err }}
			cmd.Flags().Duration("every", 0, "")
			cmd.Flags().Bool("often", false, "")
			cmd.Flags().String("to", "", "")
			if err := cmd.MarkFlagRequired("to"); err != nil {
				t.Fatal(err)
			}
			root := &cobra.Command{Use: "tool"}
			root.AddCommand(cmd)
			var stdout, stderr bytes.Buffer
			if code := RunCommands(t.Context(), root, append([]string{"probe"}, test.args...), &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(test.stderr, stderr.String()); diff != "" || stdout.Len() > 0 {
				t.Errorf("stdout %q, stderr (-want +got):\n%s", stdout.String(), diff)
			}
		})
	}
}

func TestResultIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r := &Result{name: "r", path: path}
	if err := r.Write(strings.Repeat("ä", 1000) + "\n"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || len(got) > maxResult || !strings.HasSuffix(string(got), "ä…") {
		t.Errorf("%d bytes ending in %q (%v), want at most %d of whole letters", len(got), got[max(0, len(got)-8):], err, maxResult)
	}
}

// TestConfirm: what deletes is not begun by a key that is pressed by habit.
func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"yes\n": true, "y\n": false, "\n": false, "": false} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(answer))
		cmd.SetErr(io.Discard)
		if err := Confirm(cmd, "Delete it?"); (err == nil) != want || err != nil && fail.ReasonOf(err) != fail.Cancelled {
			t.Errorf("%q: %v, want consent: %t", answer, err, want)
		}
	}
}
