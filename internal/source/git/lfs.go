package git

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// fetchObjects writes the objects that a module's pointers stand for.
func (c *checkout) fetchObjects(ctx context.Context, m *module, pointers []pointerFile) error {
	if err := requireProgram("git-lfs"); err != nil {
		return err
	}
	paths := map[pointer][]string{}
	var total int64
	for _, p := range pointers {
		if paths[p.pointer] == nil {
			total += p.size
		}
		paths[p.pointer] = append(paths[p.pointer], p.path)
	}
	config, from, err := m.lfsConfig(ctx)
	if err != nil {
		return err
	}
	c.log.Info(fmt.Sprintf("Fetching %s, %s, from %s.", humanize.Count(len(paths), "LFS object"), humanize.Bytes(total), from))
	// The empty patterns override those of .lfsconfig.
	if _, err := m.run(ctx, config, "lfs", "fetch", "--include=", "--exclude=", "origin", m.commit); err != nil {
		return err
	}
	for p, at := range paths {
		object := filepath.Join(m.dir, "lfs", "objects", p.id[:2], p.id[2:4], p.id)
		if info, err := os.Lstat(object); err != nil || info.Size() != p.size {
			return fail.Becausef(fail.LFSPointers, "object %s of %q, %s: git-lfs did not fetch it: want one pointer to it in the form of Git LFS's specification",
				p.id, at[0], humanize.Bytes(p.size))
		}
		if err := c.place(object, at); err != nil {
			return fmt.Errorf("object %s: %w", p.id, err)
		}
	}
	return nil
}

// lfsConfig is the configuration for git-lfs, and the host that it asks: the
// server that .lfsconfig names, the one that the ssh server names, or the usual
// place next to the repository.
func (m *module) lfsConfig(ctx context.Context) (config [][2]string, from string, err error) {
	settings, err := m.config(ctx, ".lfsconfig")
	if err != nil {
		return nil, "", err
	}
	server := m.address
	configured := settings["lfs.url"]
	if configured == "" {
		configured = settings["remote.origin.lfsurl"]
	}
	if configured != "" {
		if server, err = parseAddress(configured); err != nil {
			return nil, "", fmt.Errorf("reading .lfsconfig: %w", err)
		}
	}
	url := server.forGit()
	if configured == "" && server.scheme != "ssh" {
		url = lfsEndpoint(server).String()
	}
	return [][2]string{{"lfs.url", url}}, server.url().Host, nil
}

// copyFile copies a file to a path where there is none.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
