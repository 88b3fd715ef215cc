package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// files gives what lies on a volume to somebody who asks by exec, or puts onto it what they
// bring, a request a process.
func files(args []string, stdin io.Reader, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch command, rest := args[0], args[1:]; {
	case command == "hold" && len(rest) == 0:
		hold(ctx, time.NewTicker(holdLooks).C, alone)
		return nil
	case command == "list" && len(rest) > 1:
		return listFiles(ctx, rest[0], rest[1:], stdout)
	case command == "send" && len(rest) == 1:
		var wanted agent.FileRequest
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading which files are wanted: %w", err)
		}
		return tree.WriteContents(ctx, stdout, rest[0], wanted.Manifest, wanted.Missing)
	case command == "missing" && len(rest) == 1:
		return missingFiles(ctx, rest[0], stdin, stdout)
	case command == "land" && len(rest) == 1:
		return landFiles(ctx, rest[0], stdin, stdout)
	case command == "download" && len(rest) == 1:
		var wanted []agent.Download
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading what is to be downloaded: %w", err)
		}
		return download(ctx, &http.Client{Transport: idleTransport{http.DefaultTransport, silence}}, rest[0], wanted, stdout)
	}
	return fmt.Errorf("files %q: want hold, list DIR PATH..., send DIR, missing DIR, land DIR or download DIR", args)
}

// Whoever made the pod asks something of it now and then, each time by a process. They may look
// at files of their own for long in between; and a ReadWriteOnce claim, which keeps the pods of
// other nodes waiting, is not to be held for hours because they were killed.
const (
	holdLooks = time.Minute
	holdFor   = 30 // looks
)

// hold waits until it is told to end, or is alone for so many looks in a row.
func hold(ctx context.Context, looks <-chan time.Time, alone func() bool) {
	for quiet := 0; quiet < holdFor; {
		select {
		case <-ctx.Done():
			return
		case <-looks:
		}
		if quiet++; !alone() {
			quiet = 0
		}
	}
}

// alone is true where the container runs no other process.
func alone() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
			return false
		}
	}
	return true
}

// missingFiles says which contents of a manifest are not in the folder yet, which it makes.
func missingFiles(ctx context.Context, dir string, stdin io.Reader, stdout io.Writer) error {
	var m tree.Manifest
	if err := json.NewDecoder(stdin).Decode(&m); err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	landing, err := land(ctx, dir, m)
	if err != nil {
		return err
	}
	defer landing.Close()
	return json.NewEncoder(stdout).Encode(landing.Missing())
}

// landFiles puts files into the folder: stdin is a manifest as JSON, a line, and the contents
// that are missing, as send writes them.
func landFiles(ctx context.Context, dir string, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReaderSize(stdin, 1<<20)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	var m tree.Manifest
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	landing, err := land(ctx, dir, m)
	if err != nil {
		return err
	}
	defer landing.Close()
	if len(landing.Missing()) > 0 {
		if err := tree.ReadContents(ctx, in, m.Sizes(), landing.Put); err != nil {
			return err
		}
	}
	if err := landing.Finish(); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(landing.Landed())
}

func land(ctx context.Context, dir string, m tree.Manifest) (*tree.Landing, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	// Ranks run as another user of the same group.
	syscall.Umask(0o002)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	return tree.NewLanding(ctx, dir, m)
}

func listFiles(ctx context.Context, dir string, paths []string, stdout io.Writer) error {
	var found agent.FileListing
	var there []string
	for _, path := range paths {
		if !filepath.IsLocal(path) {
			return fmt.Errorf("path %q: want one in the folder", path)
		}
		switch _, err := os.Lstat(filepath.Join(dir, path)); {
		case errors.Is(err, os.ErrNotExist):
			found.Absent = append(found.Absent, path)
		case err != nil:
			return err
		default:
			there = append(there, path)
		}
	}
	if len(there) > 0 {
		var err error
		if found.Manifest, err = tree.Scan(ctx, dir, tree.Only(there)); err != nil {
			return err
		}
	}
	return json.NewEncoder(stdout).Encode(found)
}
