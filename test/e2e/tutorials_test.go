// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Placeholders in the pages, which the sessions replace: a repository, an image, and the name of the newest run.
const (
	pageRepository = "https://github.com/me/my-model.git"
	pageImage      = "IMAGE"
	pageRun        = "RUN"
)

// tutorials types the commands of the first pages as a new user does, and compares the output with the pages.
// Both folders are copies of the working tree, and of a project with a script of its own.
func tutorials(u trainer) {
	pages := testedPages(u.T, repository(u.T))
	checkout := u.checkout()

	// The pages name this namespace, and its creation is one of their commands.
	demo := u
	demo.namespace = "ml-dev-env"
	if out, err := demo.try("get", "namespace", demo.namespace); err == nil {
		u.Fatalf("namespace %s exists: the tutorial creates it, and this test deletes it:\n%s", demo.namespace, out)
	}
	u.Cleanup(func() {
		if out, err := demo.try("delete", "namespace", demo.namespace, "--ignore-not-found", "--wait=false"); err != nil {
			u.Errorf("deleting namespace %s: %v: %s", demo.namespace, err, out)
		}
	})
	demo.types(checkout, pages["demo.md"])
	demo.nothingLeft()
	demo.kubectl("delete", "namespace", demo.namespace, "--wait")

	u.install(u.clusterFile("per_node: 4", "per_node: 1"))
	project := u.ownProject(checkout)
	u.repo, u.commit = serveRepository(u.T, map[string]string{".": project})
	u.types(project, slices.Concat(pages["script.md"], pages["saving.md"])) // which resumes the newest run
}

func (u trainer) copyFile(from, to string) {
	u.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		u.Fatal(err)
	}
}

// checkout copies the working tree, in which clusters/local.yaml names an image that the cluster has.
func (u trainer) checkout() string {
	u.Helper()
	root, dir := repository(u.T), u.TempDir()
	git := func(args ...string) string {
		out, err := run(u.T, nil, "git",
			append([]string{"-c", "safe.directory=*", "-c", "user.name=e2e", "-c", "user.email=e2e@localcluster.local"}, args...)...)
		if err != nil {
			u.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return out
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(git("-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"),
		"\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		info, statErr := os.Stat(filepath.Join(root, name))
		if err != nil || statErr != nil {
			u.Fatal(err, statErr)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			u.Fatal(err)
		}
		if err := os.WriteFile(to, content, info.Mode()); err != nil {
			u.Fatal(err)
		}
	}
	git("-C", dir, "init", "--quiet")
	git("-C", dir, "add", "--all")
	git("-C", dir, "commit", "--quiet", "--message=all")
	u.copyFile(u.clusterFile(), filepath.Join(dir, "clusters", "local.yaml"))
	return dir
}

// ownProject copies the project of the page about the user's own script, next to the programs of the checkout.
func (u trainer) ownProject(checkout string) string {
	u.Helper()
	dir := u.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "project"))); err != nil {
		u.Fatal(err)
	}
	u.copyFile(filepath.Join(checkout, "internal", "agent", "pylib", "mlenv.py"), filepath.Join(dir, "mlenv.py"))
	if err := os.Symlink(filepath.Join(checkout, "bin"), filepath.Join(dir, "bin")); err != nil {
		u.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("bin\n"), 0o600); err != nil {
		u.Fatal(err)
	}
	return dir
}

// types runs the commands of a page in one shell, in the namespace of u.
func (u trainer) types(dir string, blocks []block) {
	u.Helper()
	shell := u.shell(dir)
	defer shell.close()
	printed := ""
	for _, b := range blocks {
		switch {
		case b.ranOnCluster():
			printed = ""
			for _, c := range b.commands() {
				out := shell.run(b, c)
				if line := missing(c.output, out); line != "" {
					u.Errorf("%s: %s did not print %q:\n%s", b, c.text, line, out)
				}
				printed += out
			}
		case b.output && printed != "":
			if line := missing(b.text, printed); line != "" {
				u.Errorf("%s: %q was not printed:\n%s", b, line, printed)
			}
		default:
			printed = "" // the output of a block that is not run here is not compared
		}
	}
}

// shell is one bash for all commands of a page, because some of them set variables.
type shell struct {
	u       trainer
	program *exec.Cmd
	stdin   io.WriteCloser
	output  *bufio.Reader
	// newest is the name of the run in the output of the last command that named a run.
	newest string
}

// ended separates the output of a command from its exit code.
const ended = "\x01"

var runNamed = regexp.MustCompile(`\b[Rr]un (?:[a-z0-9-]+/)?([a-z0-9][a-z0-9.-]*) (?:is started|is in progress|succeeded|failed)`)

func (u trainer) shell(dir string) *shell {
	u.Helper()
	config := filepath.Join(u.TempDir(), "kubeconfig")
	u.copyFile(kubeconfig, config)
	if out, err := run(u.T, nil, stateDir+"/bin/kubectl", "--kubeconfig="+config, "config", "set-context", "--current", "--namespace="+
		u.namespace); err != nil {
		u.Fatalf("choosing the namespace: %v\n%s", err, out)
	}
	program := exec.CommandContext(u.Context(), "bash", "--noprofile", "--norc")
	program.Dir = dir
	// The README puts bin/ of the checkout into PATH.
	program.Env = append(os.Environ(), "KUBECONFIG="+config, "PATH="+filepath.Join(dir, "bin")+":"+stateDir+"/bin:"+os.Getenv("PATH"))
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	stdin, err := program.StdinPipe()
	if err != nil {
		u.Fatal(err)
	}
	output, err := program.StdoutPipe()
	if err != nil {
		u.Fatal(err)
	}
	if err := program.Start(); err != nil {
		u.Fatal(err)
	}
	s := &shell{u: u, program: program, stdin: stdin, output: bufio.NewReader(output)}
	// The few subcommands of oc on the pages are kubectl's too.
	s.run(block{}, pageCommand{text: `oc() { kubectl "$@"; }`})
	return s
}

// run types a command and returns what it printed. The exit code must equal the one in the page.
func (s *shell) run(b block, c pageCommand) string {
	s.u.Helper()
	text := strings.ReplaceAll(c.text, pageRepository, s.u.repo)
	text = regexp.MustCompile(`\b`+pageImage+`\b`).ReplaceAllLiteralString(text, trainingImage)
	if s.newest != "" {
		text = regexp.MustCompile(`\b`+pageRun+`\b`).ReplaceAllLiteralString(text, s.newest)
	}
	began := time.Now()
	if _, err := fmt.Fprintf(s.stdin, "{ %s\n} </dev/null 2>&1; printf '%s%%d%s' $?\n", text, ended, ended); err != nil {
		s.u.Fatalf("%s: typing %s: %v", b, text, err)
	}
	// The longest command builds an image.
	const timeForOneCommand = 20 * time.Minute
	ctx, cancel := context.WithTimeout(s.u.Context(), timeForOneCommand)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if ctx.Err() == context.DeadlineExceeded {
			_ = s.program.Cancel() // then the output ends
		}
	})()
	out, err := s.output.ReadString(ended[0])
	code := ""
	if err == nil {
		code, err = s.output.ReadString(ended[0])
	}
	if err != nil {
		s.u.Fatalf("%s: %s did not end: %v\n%s", b, text, err, out)
	}
	out = strings.TrimSuffix(out, ended)
	s.u.Logf("%s: %s: exit code %s after %s", b, text, strings.TrimSuffix(code, ended), time.Since(began).Round(time.Second))
	if strings.TrimSuffix(code, ended) != fmt.Sprint(c.exit) {
		s.u.Fatalf("%s: %s: exit code %s, want %d\n%s", b, text, strings.TrimSuffix(code, ended), c.exit, out)
	}
	if named := runNamed.FindAllStringSubmatch(out, -1); named != nil {
		s.newest = named[len(named)-1][1]
	}
	return out
}

func (s *shell) close() {
	s.u.Helper()
	_ = s.stdin.Close()
	if err := s.program.Wait(); err != nil && s.u.Context().Err() == nil {
		s.u.Logf("the shell ended with %v", err) // bash returns the exit code of its last command
	}
}
