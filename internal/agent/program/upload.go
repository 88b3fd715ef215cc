// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// partFiles prints what an upload that broke off has left of the contents of an agent.UploadRequest.
func partFiles(ctx context.Context, dir string, stdin io.Reader, stdout io.Writer) error {
	if err := endOthers("/proc", []string{"files", "continue", dir}); err != nil {
		return err
	}
	var request agent.UploadRequest
	if err := json.NewDecoder(stdin).Decode(&request); err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	landing, err := landingOf(dir, request.Manifest)
	if err != nil {
		return err
	}
	defer landing.Close()
	var found agent.UploadParts
	end := time.Now().Add(time.Duration(request.Seconds * float64(time.Second)))
	found.Parts, found.All, err = landing.Parts(ctx, request.Parts, func() bool { return time.Now().After(end) })
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(found)
}

// continueFiles reads a line with an agent.UploadRequest from stdin. Then it writes the contents, which follow in the form of send, behind
// the parts of them that the folder has. What came stays if the rest does not come.
func continueFiles(ctx context.Context, dir string, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReaderSize(stdin, 1<<20)
	line, err := in.ReadBytes('\n')
	var request agent.UploadRequest
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	if err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	landing, err := landingOf(dir, request.Manifest)
	if err != nil {
		return err
	}
	defer landing.Close()
	landing.ContinueAt(request.Parts)
	var last tree.Digest
	if len(landing.Missing()) > 0 {
		err = tree.ReadRest(ctx, in, request.Manifest.Sizes(), landing.Begun, func(content tree.Digest, from io.Reader) error {
			last = content
			return landing.Put(content, from)
		})
	}
	switch {
	case errors.Is(err, tree.ErrDamaged):
		return json.NewEncoder(stdout).Encode(agent.UploadResult{Damaged: last})
	case err != nil:
		return err
	case len(landing.Missing()) > 0:
		return fmt.Errorf("receiving files: %d contents are missing: %w", len(landing.Missing()), io.ErrUnexpectedEOF)
	}
	if err := landing.Finish(); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(agent.UploadResult{})
}

// landingOf creates the folder if it is missing.
func landingOf(dir string, m tree.Manifest) (*tree.Landing, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return tree.NewLandingOf(dir, m)
}

// endTime is how long a killed process may take to end.
const endTime = 10 * time.Second

// endOthers kills the processes of this program and container with these arguments. Their connections broke, but what was on its way may
// still reach them.
func endOthers(proc string, args []string) error {
	same := func(pid, name string) bool {
		its, err := os.Readlink(filepath.Join(proc, pid, name))
		own, errOwn := os.Readlink(filepath.Join(proc, "self", name))
		return err == nil && errOwn == nil && its == own
	}
	want := []byte{0}
	for _, arg := range args {
		want = append(append(want, arg...), 0)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || !same(entry.Name(), "exe") || !same(entry.Name(), "ns/pid") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, entry.Name(), "cmdline")) //nolint:forbidigo // no other can make files in /proc
		if err == nil && bytes.HasSuffix(line, want) {
			if err := end(pid); err != nil {
				return fmt.Errorf("ending an earlier transfer, process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// end kills a process, and waits until it is gone.
func end(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	} else if err != nil {
		return err
	}
	defer unix.Close(handle)
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	events := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	ready, err := unix.Poll(events, int(endTime/time.Millisecond))
	if err == nil && ready == 0 {
		err = fmt.Errorf("it has not ended after %s", endTime)
	}
	return err
}
