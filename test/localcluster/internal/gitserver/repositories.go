// SPDX-License-Identifier: Apache-2.0

// Package gitserver serves git repositories over HTTPS and ssh, as a git host
// does: one public, one private, one with submodules, one with LFS pointers.
package gitserver

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Names of the repositories. Private requires the token or the key.
const (
	Public     = "public"
	Private    = "private"
	Submodules = "submodules"
	LFS        = "lfs"
)

// Files of the server's folder that clients need.
const (
	// TokenFile contains the password of the private repository, for any user name.
	TokenFile = "token"
	// ClientKeyFile is the ssh key that may read it.
	ClientKeyFile = "id_ed25519"
	// KnownHostsFile contains the server's ssh host key.
	KnownHostsFile = "known_hosts"
	hostKeyFile    = "ssh_host_ed25519_key"
	reposDir       = "repositories"
)

type file struct{ name, content string }

// An LFS pointer as git-lfs writes it; the object itself is not served.
const lfsPointer = "version https://git-lfs.github.com/spec/v1\n" +
	"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n" +
	"size 12345\n"

var contents = map[string][]file{
	Public: {
		{"README.md", "# Public\n\nA repository that anybody can clone.\n"},
		{"hello.py", "print(\"hello from the public repository\")\n"},
	},
	Private: {
		{"README.md", "# Private\n\nA repository that wants a token or a key.\n"},
		{"secret.py", "print(\"hello from the private repository\")\n"},
	},
	Submodules: {{"README.md", "# Submodules\n\nThe public repository is in library/.\n"}},
	LFS: {
		{".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n"},
		{"weights.bin", lfsPointer},
	},
}

// Prepare creates what is missing in dir: keys, the token, the repositories. hosts are the names and addresses of the ssh
// server.
func Prepare(ctx context.Context, dir string, hosts []string) error {
	if err := os.MkdirAll(filepath.Join(dir, reposDir), 0o755); err != nil {
		return err
	}
	if err := ensureToken(filepath.Join(dir, TokenFile)); err != nil {
		return err
	}
	for _, name := range []string{hostKeyFile, ClientKeyFile} {
		if err := ensureKey(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	hostKey, err := readKey(filepath.Join(dir, hostKeyFile))
	if err != nil {
		return err
	}
	line := strings.Join(hosts, ",") + " " + string(ssh.MarshalAuthorizedKey(hostKey.PublicKey()))
	if err := os.WriteFile(filepath.Join(dir, KnownHostsFile), []byte(line), 0o644); err != nil {
		return err
	}
	for _, name := range []string{Public, Private, Submodules, LFS} {
		if err := ensureRepository(ctx, dir, name); err != nil {
			return err
		}
	}
	return nil
}

func ensureToken(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	token := make([]byte, 20)
	if _, err := rand.Read(token); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(hex.EncodeToString(token)), 0o600)
}

func ensureKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}

func readKey(path string) (ssh.Signer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(content)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return key, nil
}

// ensureRepository creates a bare repository with one commit, which is the same on every machine.
func ensureRepository(ctx context.Context, dir, name string) (err error) {
	bare := filepath.Join(dir, reposDir, name+".git")
	if _, err := os.Stat(bare); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	work, err := os.MkdirTemp(dir, "work-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := git(ctx, work, "init", "--quiet", "--initial-branch=main"); err != nil {
		return err
	}
	for _, f := range contents[name] {
		if err := os.WriteFile(filepath.Join(work, f.name), []byte(f.content), 0o644); err != nil {
			return err
		}
	}
	if name == Submodules {
		if err := addSubmodule(ctx, work, filepath.Join(dir, reposDir, Public+".git")); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"add", "--all"},
		{"commit", "--quiet", "--message=A first commit"},
		{"clone", "--quiet", "--bare", work, bare + ".new"},
		// As on git hosts, clients can fetch any commit by its SHA, and partially.
		{"-C", bare + ".new", "config", "uploadpack.allowAnySHA1InWant", "true"},
		{"-C", bare + ".new", "config", "uploadpack.allowFilter", "true"},
	} {
		if err := git(ctx, work, args...); err != nil {
			return err
		}
	}
	return os.Rename(bare+".new", bare)
}

// addSubmodule adds the public repository at library/, with a URL relative to the URL of the repository itself.
func addSubmodule(ctx context.Context, work, public string) error {
	if err := git(ctx, work, "clone", "--quiet", public, "library"); err != nil {
		return err
	}
	modules := "[submodule \"library\"]\n\tpath = library\n\turl = ../public.git\n"
	return os.WriteFile(filepath.Join(work, ".gitmodules"), []byte(modules), 0o644)
}

func git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	const name, email, date = "localcluster", "localcluster@example.com", "2026-01-01T00:00:00Z"
	cmd.Env = append(os.Environ(),
		"GIT_AUTHOR_NAME="+name, "GIT_AUTHOR_EMAIL="+email, "GIT_AUTHOR_DATE="+date,
		"GIT_COMMITTER_NAME="+name, "GIT_COMMITTER_EMAIL="+email, "GIT_COMMITTER_DATE="+date,
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
