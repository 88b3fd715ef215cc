package git

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// programs run git and git-lfs with a scratch folder as their home.
type programs struct {
	log     *slog.Logger
	scratch string
	keys    keyring
	limits  limits
	env     []string
}

// settings are git's whole configuration.
func settings(caBundle string, silence time.Duration) [][2]string {
	all := [][2]string{
		{"core.hooksPath", "/dev/null"},
		{"core.fsmonitor", "false"},
		{"core.protectHFS", "true"},
		{"core.protectNTFS", "true"},
		{"core.symlinks", "true"},
		{"core.fileMode", "true"},
		{"advice.detachedHead", "false"},
		{"gc.auto", "0"},
		{"maintenance.auto", "false"},
		{"submodule.recurse", "false"},
		{"credential.helper", ""},
		// Names such as .git, .. and git~1 are refused, and entries that are there
		// twice; old mistakes that do no harm are not.
		{"fetch.fsckObjects", "true"},
		{"fetch.fsck.zeroPaddedFilemode", "ignore"},
		{"fetch.fsck.badTimezone", "ignore"},
		{"fetch.fsck.missingSpaceBeforeDate", "ignore"},
		{"fetch.fsck.missingEmail", "ignore"},
		// libcurl sends credentials to no other host; GIT_ALLOW_PROTOCOL bounds the schemes.
		{"http.followRedirects", "true"},
		{"http.lowSpeedLimit", "1"},
		{"http.lowSpeedTime", strconv.Itoa(int(silence.Seconds()))},
		// Memory: packs stay packs, one thread resolves deltas, larger files are streamed.
		{"fetch.unpackLimit", "1"},
		{"pack.threads", "1"},
		{"core.bigFileThreshold", "1m"},
		{"core.deltaBaseCacheLimit", "32m"},
		{"core.packedGitWindowSize", "16m"},
		{"core.packedGitLimit", "64m"},
		{"lfs.basictransfersonly", "true"},
		{"lfs.concurrenttransfers", "4"},
		{"lfs.transfer.maxretries", "3"},
		{"lfs.locksverify", "false"},
		{"lfs.ssh.automultiplex", "false"},
		{"lfs.sshtransfer", "never"},
		{"lfs.activitytimeout", strconv.Itoa(int(silence.Seconds()))},
	}
	if caBundle != "" {
		all = append(all, [2]string{"http.sslCAInfo", caBundle})
	}
	return all
}

// newPrograms makes the scratch folder: a home, a folder for temporary files,
// and this program under the names that git calls it by.
func newPrograms(log *slog.Logger, scratch string, s Source, home address) (*programs, error) {
	p := &programs{log: log, scratch: scratch, keys: newKeyring(s.Auth, home), limits: s.limits}
	if user, _, ok := p.keys.basic(home.scheme, home.host, home.port); ok && home.scheme == "http" {
		log.Warn(fmt.Sprintf("The credentials of %s go to %s without encryption; https:// would protect them.", printable(user), home))
	}
	if err := requireProgram("git"); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{"", "home", "tmp", "bin"} {
		if err := os.Mkdir(filepath.Join(scratch, folder), 0o700); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{askpassName, sshName} {
		if err := os.Symlink(self, filepath.Join(scratch, "bin", name)); err != nil {
			return nil, err
		}
	}
	question, err := json.Marshal(helperFile{URL: s.URL, AuthDir: s.Auth.dir, Silence: s.limits.silence})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(scratch, helperFileName), question, 0o600); err != nil {
		return nil, err
	}
	caBundle, err := s.Auth.writeRoots(filepath.Join(scratch, "ca-bundle.crt"))
	if err != nil {
		return nil, err
	}
	p.env = environment(scratch, caBundle, s.limits.silence)
	return p, nil
}

// environment is all that git and its children see of the environment: paths
// and the proxy, no secret.
func environment(scratch, caBundle string, silence time.Duration) []string {
	env := []string{
		"HOME=" + filepath.Join(scratch, "home"),
		"TMPDIR=" + filepath.Join(scratch, "tmp"),
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=" + filepath.Join(scratch, "bin", askpassName),
		"GIT_SSH=" + filepath.Join(scratch, "bin", sshName),
		"GIT_SSH_VARIANT=ssh",
		"GIT_LFS_FORCE_PROGRESS=1",
		helperVariable + "=" + scratch,
	}
	path := os.Getenv("PATH")
	if path == "" {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	env = append(env, "PATH="+path)
	for _, name := range []string{"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return append(env, configuration(0, settings(caBundle, silence)...)...)
}

// configuration are the variables that set git's configuration; first counts
// those that are set already.
func configuration(first int, settings ...[2]string) []string {
	env := []string{fmt.Sprintf("GIT_CONFIG_COUNT=%d", first+len(settings))}
	for i, s := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", first+i, s[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", first+i, s[1]))
	}
	return env
}

func requireProgram(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fail.Advise(fail.Becausef(fail.Internal, "looking for the program %s: not found: want it in PATH (%s)", name, os.Getenv("PATH")),
			"install %s here; a steps image needs a base that has it: mlenv bundle steps-image --base=IMAGE", name)
	}
	return nil
}

// repository is a git repository in the scratch folder with one remote, origin.
type repository struct {
	*programs
	address  address
	dir      string
	worktree string
	// abort is a message that ends git at once, empty for none.
	abort string
}

// errAborted is how git ends after the message that aborts it.
var errAborted = errors.New("aborted")

// open makes an empty repository for one remote. It returns the repository with an
// error too, because that explains the error.
func (p *programs) open(ctx context.Context, a address, name, worktree string) (*repository, error) {
	r := &repository{programs: p, address: a, dir: filepath.Join(p.scratch, name), worktree: worktree}
	if _, err := r.git(ctx, "init", "--quiet", "--template="); err != nil {
		return r, err
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "info"), 0o700); err != nil {
		return r, err
	}
	// The file overrides the tree's own attributes: content stays as committed.
	const attributes = "* -text -eol -ident -filter -working-tree-encoding\n"
	return r, os.WriteFile(filepath.Join(r.dir, "info", "attributes"), []byte(attributes), 0o600)
}

// git runs a command of git and returns its output.
func (r *repository) git(ctx context.Context, args ...string) (string, error) {
	return r.run(ctx, nil, args...)
}

// exitError is a program that failed.
type exitError struct {
	// text is the last that it wrote to stderr.
	text string
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("%s: %s", e.err, e.text) }

func (e *exitError) Unwrap() error { return e.err }

// maxOutput bounds what is kept of a program's output: the names of a
// repository with a million branches.
const maxOutput = 256 << 20

// run runs git with more configuration. Of the context's end the whole process
// group dies, and so it does if the repository grows beyond the limit.
func (r *repository) run(ctx context.Context, config [][2]string, args ...string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := r.command(ctx, config, args...)
	stdout := &limitedBuffer{max: maxOutput}
	stderr := &report{log: r.log, address: r.address, onLine: func(line string) {
		if r.abort != "" && strings.Contains(line, r.abort) {
			cancel(errAborted)
		}
	}}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if args[0] == "lfs" {
		cmd.Stdout = stderr // its progress
	}
	if err := os.RemoveAll(filepath.Join(r.scratch, failureName)); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	if args[0] != "lfs" {
		limitMemory(cmd.Process.Pid, r.limits.memory)
	}
	go r.watchDisk(ctx, cancel)
	err := cmd.Wait()
	if err != nil {
		// git may have died alone; its children would still write.
		_ = cmd.Cancel()
	}
	stderr.end()
	if cause := context.Cause(ctx); cause != nil {
		return "", cause
	}
	if err != nil {
		return "", &exitError{text: stderr.said.String(), err: err}
	}
	return stdout.String(), nil
}

// command is git in a process group of its own, which dies with the context.
func (r *repository) command(ctx context.Context, config [][2]string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.scratch
	// A redirect obeys this list too, so none leads from https to http.
	schemes := r.address.scheme
	if schemes == "http" {
		schemes = "http:https"
	}
	config = append([][2]string{{"remote.origin.url", r.address.forGit()}}, config...)
	cmd.Env = slices.Concat(r.env, []string{"GIT_DIR=" + r.dir, "GIT_WORK_TREE=" + r.worktree, "GIT_ALLOW_PROTOCOL=" + schemes},
		configuration(r.configured(), config...))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// configured counts the settings that the environment has.
func (p *programs) configured() int {
	count := 0
	for _, variable := range p.env {
		if strings.HasPrefix(variable, "GIT_CONFIG_KEY_") {
			count++
		}
	}
	return count
}

// watchDisk ends the context if the scratch folder grows beyond the limit.
func (p *programs) watchDisk(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if folderSize(p.scratch) > p.limits.disk {
				cancel(p.tooLarge())
				return
			}
		}
	}
}

func (p *programs) tooLarge() error {
	return fail.Advise(fail.Becausef(fail.DiskFull, "the repository needs more than %s of disk", humanize.Bytes(p.limits.disk)),
		"keep large data out of the repository; it belongs under /datasets")
}

// folderSize adds up the files; those that vanish meanwhile count nothing.
func folderSize(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // git renames and removes files while it works
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// limitedBuffer refuses what is beyond its size.
type limitedBuffer struct {
	bytes.Buffer
	max int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.max {
		return 0, errors.New("the output is too long")
	}
	return b.Buffer.Write(p)
}
