package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// files runs one of the file commands, which mlenv starts by exec to read from a volume or to write to it.
func files(args []string, stdin io.Reader, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Ranks run as another user of the same group.
	syscall.Umask(0o002)
	switch command, rest := args[0], args[1:]; {
	case command == "hold" && len(rest) == 0:
		hold(ctx, time.NewTicker(holdLooks).C, alone)
		return nil
	case command == "list" && len(rest) > 1:
		return listFiles(ctx, rest[0], rest[1:], stdout)
	case command == "send" && len(rest) == 1:
		var wanted agent.FileRequest
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading the list of requested files: %w", err)
		}
		return tree.WriteRest(ctx, stdout, rest[0], wanted.Manifest, wanted.Missing, wanted.From)
	case command == "page" && len(rest) == 1:
		var wanted agent.PageRequest
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading which files are to be listed: %w", err)
		}
		return pageFiles(ctx, rest[0], wanted, stdout)
	case command == "missing" && len(rest) == 1:
		return landFiles(ctx, rest[0], stdin, stdout, false)
	case command == "land" && len(rest) == 1:
		return landFiles(ctx, rest[0], stdin, stdout, true)
	case command == "download" && len(rest) == 1:
		var wanted []agent.Download
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading what is to be downloaded: %w", err)
		}
		return download(ctx, rest[0], wanted, 2*time.Minute, stdout)
	}
	return fmt.Errorf("files %q: want hold, list DIR PATH..., send DIR, missing DIR, land DIR or download DIR", args)
}

// The program that created the pod starts a process in it for each request. It may read local files for a long time in between. If
// it was killed, the pod must end soon: a ReadWriteOnce claim keeps pods on other nodes waiting.
const (
	holdLooks = time.Minute
	holdFor   = 30 // looks
)

// hold waits until ctx is done, or until it was alone for holdFor looks in a row.
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

// alone reports whether the container runs no other process.
func alone() bool {
	entries, err := os.ReadDir("/proc")
	return err == nil && !slices.ContainsFunc(entries, func(entry os.DirEntry) bool {
		pid, err := strconv.Atoi(entry.Name())
		return err == nil && pid != os.Getpid()
	})
}

// landFiles reads a line with a manifest in JSON from stdin, and creates the folder. Then it writes the missing contents, which
// follow in the form of send, and prints the number of files. Without write it prints the missing contents instead.
func landFiles(ctx context.Context, dir string, stdin io.Reader, stdout io.Writer, write bool) error {
	in := bufio.NewReaderSize(stdin, 1<<20)
	line, err := in.ReadBytes('\n')
	if err != nil && (write || !errors.Is(err, io.EOF)) {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	var m tree.Manifest
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("reading what is to come: %w", err)
	}
	if err := m.Check(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	landing, err := tree.NewLanding(ctx, dir, m)
	if err != nil {
		return err
	}
	defer landing.Close()
	if !write {
		return json.NewEncoder(stdout).Encode(landing.Missing())
	}
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

func listFiles(ctx context.Context, dir string, paths []string, stdout io.Writer) error {
	present, absent, err := look(dir, paths)
	if err != nil {
		return err
	}
	found := agent.FileListing{Absent: absent}
	if len(present) > 0 {
		if found.Manifest, err = tree.Scan(ctx, dir, tree.Only(present)); err != nil {
			return err
		}
	}
	return json.NewEncoder(stdout).Encode(found)
}

// pageFiles is listFiles for connections that may last only so long.
func pageFiles(ctx context.Context, dir string, wanted agent.PageRequest, stdout io.Writer) error {
	present, absent, err := look(dir, wanted.Paths)
	if err != nil {
		return err
	}
	found := agent.FilePage{Absent: absent}
	if len(present) > 0 {
		end := time.Now().Add(time.Duration(wanted.Seconds * float64(time.Second)))
		found.Page, err = tree.ScanPage(ctx, dir, tree.Only(present), wanted.From, func() bool { return time.Now().After(end) })
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(stdout).Encode(found)
}

// look sorts paths of the folder into those that exist and those that do not.
func look(dir string, paths []string) (present, absent []string, err error) {
	for _, path := range paths {
		if !filepath.IsLocal(path) {
			return nil, nil, fmt.Errorf("path %q: want one in the folder", path)
		}
		switch _, err := os.Lstat(filepath.Join(dir, path)); {
		case errors.Is(err, os.ErrNotExist):
			absent = append(absent, path)
		case err != nil:
			return nil, nil, err
		default:
			present = append(present, path)
		}
	}
	return present, absent, nil
}
