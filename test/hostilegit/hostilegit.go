// SPDX-License-Identifier: Apache-2.0

// Package hostilegit has git repositories that name programs for git to run, as an archive from somebody else can.
package hostilegit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each calls use with the folder of each repository, and fails if a program that the repository names has run.
func Each(t *testing.T, use func(t *testing.T, dir string)) {
	t.Helper()
	for _, trap := range traps {
		t.Run(trap.name, func(t *testing.T) {
			r := newRepository(t)
			if trap.set != nil {
				trap.set(r)
			}
			for key, value := range trap.config {
				r.git(t, r.dir, "config", key, r.fill(value))
			}
			// The trap is one: git itself falls into it.
			if trap.springs != "" {
				r.touch()
				_ = r.command(r.dir, strings.Fields(r.fill(trap.springs))...).Run()
				if !r.sprung() {
					t.Errorf("git %s did not run the program", trap.springs)
				}
			}
			r.touch()
			use(t, r.dir)
			if r.sprung() {
				t.Error("a program that the repository names has run")
			}
		})
	}
}

type repository struct {
	t testing.TB
	// dir is the folder to use, and program the program, which creates the file witness.
	dir, program, witness string
	touched               int
}

// newRepository creates a repository with a commit, and a program.
func newRepository(t testing.TB) *repository {
	t.Helper()
	// A path without spaces, because git gives it to a shell.
	outside, err := os.MkdirTemp("/tmp", "hostilegit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	r := &repository{t: t, dir: t.TempDir(), program: filepath.Join(outside, "program"), witness: filepath.Join(outside, "witness")}
	r.write(r.program, "#!/bin/sh\necho >"+r.witness+"\nexit 1\n")
	r.commit(r.dir)
	return r
}

// commit makes dir a repository with one commit.
func (r *repository) commit(dir string) {
	r.t.Helper()
	r.git(r.t, dir, "init", "-q")
	r.write(filepath.Join(dir, "train.py"), "print(1)\n")
	r.write(filepath.Join(dir, "go.mod"), "module x\n")
	r.git(r.t, dir, "add", ".")
	r.git(r.t, dir, "commit", "-q", "-m", "first")
	r.git(r.t, dir, "tag", "v1")
}

func (r *repository) write(path, content string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o755)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) command(dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	cmd.Stdin = strings.NewReader("protocol=https\nhost=git.example\n\n")
	return cmd
}

func (r *repository) git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := r.command(dir, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// fill replaces PROGRAM by the program's path.
func (r *repository) fill(text string) string { return strings.ReplaceAll(text, "PROGRAM", r.program) }

// touch gives files other times, so that git compares their content.
func (r *repository) touch() {
	r.t.Helper()
	r.touched++
	at := time.Now().AddDate(0, 0, -r.touched) // git may compare whole seconds
	err := filepath.WalkDir(r.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() == ".git" || !entry.Type().IsRegular() {
			if err == nil && entry.IsDir() && entry.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		at = at.Add(time.Second)
		return os.Chtimes(path, at, at)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// sprung reports whether the program has run, and forgets it.
func (r *repository) sprung() bool { return os.Remove(r.witness) == nil }

// settings has the values of keys in a repository's configuration.
type settings map[string]string

// trap is a repository that names a program.
type trap struct {
	name string
	// config are settings of the repository, and set does anything else.
	config settings
	set    func(r *repository)
	// springs is a command of git that runs the program, "" if only git at a terminal does.
	springs string
}

// inFolder returns a function that writes a file into the folder.
func inFolder(name, content string) func(r *repository) {
	return func(r *repository) { r.write(filepath.Join(r.dir, name), r.fill(content)) }
}

const hook = "#!/bin/sh\nexec PROGRAM\n"

var traps = []trap{
	{"fsmonitor", settings{"core.fsmonitor": "PROGRAM"}, nil, "status"},
	{"an embedded bare repository", nil, func(r *repository) {
		if err := os.CopyFS(filepath.Join(r.dir, "bare"), os.DirFS(filepath.Join(r.dir, ".git"))); err != nil {
			r.t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(r.dir, ".git")); err != nil {
			r.t.Fatal(err)
		}
		r.dir = filepath.Join(r.dir, "bare")
		r.git(r.t, r.dir, "config", "core.bare", "false")
		r.git(r.t, r.dir, "config", "core.worktree", ".")
		r.git(r.t, r.dir, "config", "core.fsmonitor", r.program)
	}, "status"},
	{".git is a file", nil, func(r *repository) {
		if err := os.Rename(filepath.Join(r.dir, ".git"), filepath.Join(r.dir, "data")); err != nil {
			r.t.Fatal(err)
		}
		r.write(filepath.Join(r.dir, ".git"), "gitdir: data\n")
		r.git(r.t, r.dir, "config", "core.fsmonitor", r.program)
	}, "status"},
	{"a clean filter", settings{"filter.x.clean": "PROGRAM"}, inFolder(".gitattributes", "* filter=x\n"), "status"},
	{"a process filter", settings{"filter.x.process": "PROGRAM"}, inFolder(".gitattributes", "* filter=x\n"), "status"},
	{"a smudge filter", settings{"filter.x.smudge": "PROGRAM"}, inFolder(".gitattributes", "* filter=x\n"), "checkout-index -f -a"},
	{"a filter in .git/info", settings{"filter.x.clean": "PROGRAM"}, inFolder(".git/info/attributes", "* filter=x\n"), "status"},
	{"a file of attributes", settings{"filter.x.clean": "PROGRAM", "core.attributesFile": "more"}, inFolder("more", "* filter=x\n"), "status"},
	{"a hook", nil, inFolder(".git/hooks/post-index-change", hook), "status"},
	{"a folder of hooks", settings{"core.hooksPath": "hooks"}, inFolder("hooks/post-index-change", hook), "status"},
	{"an include", settings{"include.path": "../more"}, inFolder("more", "[core]\n\tfsmonitor = PROGRAM\n"), "status"},
	{"a conditional include", settings{"includeIf.gitdir:**.path": "../more"}, inFolder("more", "[core]\n\tfsmonitor = PROGRAM\n"), "status"},
	{"the configuration of a work tree", settings{"core.repositoryFormatVersion": "1", "extensions.worktreeConfig": "true"},
		inFolder(".git/config.worktree", "[core]\n\tfsmonitor = PROGRAM\n"), "status"},
	{"a work tree of git worktree", nil, func(r *repository) {
		r.git(r.t, r.dir, "config", "core.fsmonitor", r.program)
		r.git(r.t, r.dir, "-c", "core.fsmonitor=", "worktree", "add", "-q", "other")
		r.sprung()
		r.dir = filepath.Join(r.dir, "other")
	}, "status"},
	{"a submodule's filter", nil, func(r *repository) {
		sub := filepath.Join(r.dir, "sub")
		if err := os.Mkdir(sub, 0o755); err != nil {
			r.t.Fatal(err)
		}
		r.commit(sub)
		r.git(r.t, r.dir, "add", "sub")
		r.write(filepath.Join(r.dir, ".gitmodules"), "[submodule \"sub\"]\n\tpath = sub\n\turl = ./sub\n\tignore = none\n")
		r.git(r.t, r.dir, "add", ".gitmodules")
		r.git(r.t, r.dir, "commit", "-q", "-m", "sub")
		r.git(r.t, sub, "config", "filter.x.clean", r.program)
		r.write(filepath.Join(sub, ".gitattributes"), "* filter=x\n")
	}, "status"},
	{"a submodule's update", settings{"submodule.sub.update": "!PROGRAM", "submodule.sub.url": "./sub"}, func(r *repository) {
		if err := os.Mkdir(filepath.Join(r.dir, "sub"), 0o755); err != nil {
			r.t.Fatal(err)
		}
		r.commit(filepath.Join(r.dir, "sub"))
		r.git(r.t, r.dir, "add", "sub")
		r.write(filepath.Join(r.dir, ".gitmodules"), "[submodule \"sub\"]\n\tpath = sub\n\turl = ./sub\n")
		r.git(r.t, filepath.Join(r.dir, "sub"), "commit", "-q", "--allow-empty", "-m", "second")
	}, "submodule update"},
	{"a text conversion", settings{"diff.x.textconv": "PROGRAM"}, inFolder(".gitattributes", "* diff=x\n"), "log -p"},
	{"an external diff", settings{"diff.external": "PROGRAM"}, inFolder("train.py", "print(2)\n"), "diff"},
	{"a diff command of an attribute", settings{"diff.x.command": "PROGRAM"}, func(r *repository) {
		inFolder(".gitattributes", "* diff=x\n")(r)
		inFolder("train.py", "print(2)\n")(r)
	}, "diff"},
	{"gpg for signatures", settings{"gpg.program": "PROGRAM", "log.showSignature": "true"}, func(r *repository) {
		// A signed commit needs no valid signature to be checked.
		text := r.git(r.t, r.dir, "cat-file", "commit", "HEAD")
		head, message, _ := strings.Cut(text, "\n\n")
		const signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n xxx\n -----END PGP SIGNATURE-----"
		r.write(filepath.Join(r.dir, ".git", "signed"), head+"\n"+signature+"\n\n"+message+"\n")
		r.git(r.t, r.dir, "reset", "-q", r.git(r.t, r.dir, "hash-object", "-w", "-t", "commit", ".git/signed"))
	}, "log -1"},
	{"ssh", settings{"core.sshCommand": "PROGRAM", "remote.origin.url": "ssh://git.example/x"}, nil, "ls-remote origin"},
	{"a proxy", settings{"core.gitProxy": "PROGRAM", "remote.origin.url": "git://git.example/x"}, nil, "ls-remote origin"},
	{"a server's program", settings{"remote.origin.url": ".", "remote.origin.uploadpack": "PROGRAM"}, nil, "ls-remote origin"},
	{"a credential helper", settings{"credential.helper": "!PROGRAM"}, nil, "credential fill"},
	{"a password program", settings{"core.askPass": "PROGRAM"}, nil, "credential fill"},
	{"objects that a remote promises", settings{
		"core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
		"remote.origin.url": "ext::PROGRAM", "protocol.ext.allow": "always",
	}, func(r *repository) {
		tree := r.git(r.t, r.dir, "rev-parse", "HEAD^{tree}")
		if err := os.Remove(filepath.Join(r.dir, ".git", "objects", tree[:2], tree[2:])); err != nil {
			r.t.Fatal(err)
		}
	}, "status"},
	{"pagers", settings{"core.pager": "PROGRAM", "pager.status": "PROGRAM", "pager.log": "PROGRAM"}, nil, ""},
	{"aliases", settings{"alias.status": "!PROGRAM", "alias.rev-parse": "!PROGRAM", "alias.x": "!PROGRAM"}, nil, "x"},
}
