package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
)

// files gives what lies on a volume to somebody who asks by exec, a request a process. It
// changes nothing.
func files(args []string, stdin io.Reader, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch command, rest := args[0], args[1:]; {
	case command == "hold" && len(rest) == 0:
		<-ctx.Done()
		return nil
	case command == "list" && len(rest) > 1:
		return listFiles(ctx, rest[0], rest[1:], stdout)
	case command == "send" && len(rest) == 1:
		var wanted agent.FilesWanted
		if err := json.NewDecoder(stdin).Decode(&wanted); err != nil {
			return fmt.Errorf("reading which files are wanted: %w", err)
		}
		return tree.WriteContents(ctx, stdout, rest[0], wanted.Manifest, wanted.Missing)
	}
	return fmt.Errorf("files %q: want hold, list DIR PATH..., or send DIR", args)
}

func listFiles(ctx context.Context, dir string, paths []string, stdout io.Writer) error {
	var found agent.FilesFound
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
