// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"cmp"
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

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
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

// safeSettings are for every repository, whoever made it: git runs no program that the repository names.
var safeSettings = []string{
	"core.hooksPath=/dev/null",
	"core.fsmonitor=false",
	"core.protectHFS=true",
	"core.protectNTFS=true",
	"safe.bareRepository=explicit",
	"credential.helper=",
	"advice.detachedHead=false",
	"gc.auto=0",
	"maintenance.auto=false",
	"submodule.recurse=false",
}

// settings are git's whole configuration for a fetch, except for the remote's URL.
func settings(caBundle string, silence time.Duration) []string {
	seconds := strconv.Itoa(int(silence.Seconds()))
	all := slices.Concat(safeSettings, []string{
		"core.symlinks=true",
		"core.fileMode=true",
		// Refuse names such as .git, .. and git~1, and entries that come twice, but not harmless old mistakes.
		"fetch.fsckObjects=true",
		"fetch.fsck.zeroPaddedFilemode=ignore",
		"fetch.fsck.badTimezone=ignore",
		"fetch.fsck.missingSpaceBeforeDate=ignore",
		"fetch.fsck.missingEmail=ignore",
		// libcurl sends credentials to no other host; GIT_ALLOW_PROTOCOL bounds the schemes.
		"http.followRedirects=true",
		"http.lowSpeedLimit=1",
		"http.lowSpeedTime=" + seconds,
		// Memory: packs stay packs, one thread resolves deltas, larger files are streamed.
		"fetch.unpackLimit=1",
		"pack.threads=1",
		"core.bigFileThreshold=1m",
		"core.deltaBaseCacheLimit=32m",
		"core.packedGitWindowSize=16m",
		"core.packedGitLimit=64m",
		"lfs.basictransfersonly=true",
		"lfs.concurrenttransfers=4",
		"lfs.transfer.maxretries=3",
		"lfs.locksverify=false",
		"lfs.ssh.automultiplex=false",
		"lfs.sshtransfer=never",
		"lfs.activitytimeout=" + seconds,
	})
	if caBundle != "" {
		all = append(all, "http.sslCAInfo="+caBundle)
	}
	return all
}

// newPrograms creates the scratch folder: a home, a folder for temporary files, and this program under the names by
// which git calls it.
func newPrograms(log *slog.Logger, scratch string, s Source, home address) (*programs, error) {
	p := &programs{log: log, scratch: scratch, keys: newKeyring(s.Auth, home), limits: s.limits}
	if _, _, ok := p.keys.basicAuth(home.scheme, home.host, home.port); ok && home.scheme == "http" { // the user may be the token
		log.Warn(fmt.Sprintf("The credentials go to %s without encryption; https:// would protect them.", home))
	}
	for _, name := range []string{"git", "sh"} {
		if err := requireProgram(name); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if !helps {
		return nil, fail.Becausef(fail.Internal, "fetching a repository: the main function of %s does not call git.Helper", self)
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
	p.env = environment(scratch, settings(caBundle, s.limits.silence))
	return p, nil
}

// environment returns the whole environment of git and its children: paths, the proxy and the configuration, no secret.
func environment(scratch string, settings []string) []string {
	env := []string{
		"HOME=" + filepath.Join(scratch, "home"),
		"TMPDIR=" + filepath.Join(scratch, "tmp"),
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_ASKPASS=" + filepath.Join(scratch, "bin", askpassName),
		"GIT_SSH=" + filepath.Join(scratch, "bin", sshName),
		"GIT_SSH_VARIANT=ssh",
		"GIT_LFS_FORCE_PROGRESS=1",
		helperVariable + "=" + scratch,
		"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"),
	}
	for _, name := range []string{"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value := os.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	env = append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)))
	for i, setting := range settings {
		key, value, _ := strings.Cut(setting, "=")
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, value))
	}
	return env
}

func requireProgram(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fail.Advise(fail.Becausef(fail.Internal, "looking for the program %s: not found: want it in PATH (%s)", name, os.Getenv("PATH")),
			"install %s here; a steps image needs a base that has it: BASE=IMAGE make steps-image PUSH=IMAGE", name)
	}
	return nil
}

// repository is a git repository in the scratch folder with one remote, origin.
type repository struct {
	*programs
	address  address
	dir      string
	worktree string
	// abort is a message after which git is killed, empty for none.
	abort string
	// sha256 is true for a repository whose hashes are of SHA-256.
	sha256 bool
	// namesOnly leaves out the contents of files.
	namesOnly bool
}

var errAborted = errors.New("aborted")

// open creates an empty repository for one remote. It returns the repository with an error too, because the
// repository explains the error.
func (p *programs) open(ctx context.Context, a address, name, worktree string) (*repository, error) {
	r := &repository{programs: p, address: a, dir: filepath.Join(p.scratch, name), worktree: worktree}
	return r, r.init(ctx, "sha1")
}

// setHashKind sets the kind of hashes, which git does not negotiate. The repository must be empty.
func (r *repository) setHashKind(ctx context.Context, sha256 bool) error {
	if sha256 == r.sha256 {
		return nil
	}
	r.sha256 = sha256
	if err := claimfile.RemoveAll(r.scratch, r.dir); err != nil {
		return err
	}
	return r.init(ctx, map[bool]string{false: "sha1", true: "sha256"}[sha256])
}

func (r *repository) init(ctx context.Context, hashes string) error {
	if _, err := r.runGit(ctx, "init", "--quiet", "--template=", "--object-format="+hashes); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(r.dir, "info"), 0o700); err != nil {
		return err
	}
	// The file overrides the tree's own attributes: content stays as committed.
	const attributes = "* -text -eol -ident -filter -working-tree-encoding\n"
	return os.WriteFile(filepath.Join(r.dir, "info", "attributes"), []byte(attributes), 0o600)
}

type exitError struct {
	// text is the end of what it wrote to stderr.
	text string
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("%s: %s", e.err, e.text) }

func (e *exitError) Unwrap() error { return e.err }

// errOutput is the error of a program that printed more than the limit.
var errOutput = fail.Advise(fail.Becausef(fail.UnsafeTree, "the repository has more files, commits or references than mlenv reads"),
	adviseDatasets)

// runGit runs a command of git and returns its output. When the context ends, or the repository grows beyond the limit,
// git and its children are killed.
func (r *repository) runGit(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lfs := slices.Contains(args, "lfs")
	cmd := r.command(ctx, args, r.limits.memory > 0)
	stdout := &limitedBuffer{max: r.limits.output}
	stderr := &report{log: r.log, address: r.address, onLine: func(line string) {
		if r.abort != "" && strings.Contains(line, r.abort) {
			cancel(errAborted)
		}
	}}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if lfs {
		cmd.Stdout = stderr // its progress
	}
	if err := claimfile.RemoveAll(r.scratch, filepath.Join(r.scratch, failureName)); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	go r.watchDisk(ctx, cancel)
	err := cmd.Wait()
	if err != nil {
		// git may have died alone; its children would still write.
		_ = cmd.Cancel()
	}
	stderr.split.Flush()
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return "", cause
	case stdout.full:
		return "", errOutput
	case err != nil:
		_, signal, _ := strings.Cut(err.Error(), "signal: ")
		return "", &exitError{text: strings.TrimSpace(strings.TrimSpace(string(stderr.said)) + "\n" + signal), err: err}
	}
	return stdout.buffer.String(), nil
}

// remote runs a command of git that asks the server, again if the server cannot be reached or breaks off: a cluster's DNS and
// network can fail for a moment. It does not repeat an attempt that took long, or for which no time is left.
func (r *repository) remote(ctx context.Context, args ...string) (string, error) {
	const long = 20 * time.Second // DNS may need ten to give up, a connection two minutes
	for left, pause := r.limits.retries, r.limits.pause; ; left, pause = left-1, 2*pause {
		began := time.Now()
		text, err := r.runGit(ctx, args...)
		took := time.Since(began)
		deadline, bounded := ctx.Deadline()
		why := r.retryReason(err)
		if left == 0 || why == "" || took > long && !outputMatches(err, messageBrokenOff) || bounded && time.Until(deadline) < pause+took {
			return text, err
		}
		r.log.Warn(fmt.Sprintf("%s; trying again in %s.", why, pause))
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(pause):
		}
		_ = os.Remove(filepath.Join(r.scratch, failureName)) // a later failure has another cause
	}
}

// bounds, called with KIB SECONDS ARGUMENT..., becomes git with limits of memory and processor time, also for the processes
// that git starts: git fails with a message, and the container is not killed. setrlimit refuses a soft limit above the hard
// one; then this machine's own limit is the lower one and stays. A shell, because each base with git has one, but the default
// base has no prlimit; and a Go program would itself need memory between setrlimit and exec.
const bounds = `ulimit -S -d "$1" 2>/dev/null; ulimit -S -t "$2" 2>/dev/null; shift 2; exec git "$@"`

// command returns git in a process group of its own, which is killed when the context ends.
func (r *repository) command(ctx context.Context, args []string, bounded bool) *exec.Cmd {
	words := slices.Concat([]string{"git", "-c", "remote.origin.url=" + r.address.forGit()}, args)
	if bounded {
		memory, cpu := strconv.FormatUint(r.limits.memory>>10, 10), strconv.Itoa(int(r.limits.cpu.Seconds()))
		words = slices.Concat([]string{"sh", "-c", bounds, "git", memory, cpu}, words[1:])
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = r.scratch
	// A redirect obeys this list too, so none leads from https to http.
	schemes := r.address.scheme
	if schemes == "http" {
		schemes = "http:https"
	}
	cmd.Env = slices.Concat(r.env, []string{"GIT_DIR=" + r.dir, "GIT_WORK_TREE=" + r.worktree, "GIT_ALLOW_PROTOCOL=" + schemes})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (p *programs) watchDisk(ctx context.Context, cancel context.CancelCauseFunc) {
	for ticks := time.Tick(500 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			if folderSize(p.scratch) > p.limits.disk {
				cancel(p.tooLarge())
				return
			}
		}
	}
}

const adviseDatasets = "keep data out of the repository; it belongs under /datasets"

func (p *programs) tooLarge() error {
	return fail.Advise(fail.Becausef(fail.DiskFull, "the repository needs more than %s of disk", humanize.Bytes(p.limits.disk)),
		adviseDatasets)
}

func (p *programs) tooManyFiles() error {
	return fail.Advise(fail.Becausef(fail.UnsafeTree, "the commit has more than %d files, or %s of names", p.limits.files,
		humanize.Bytes(int64(p.limits.output))),
		adviseDatasets)
}

// folderSize adds up the files, except those that git removes meanwhile.
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

// limitedBuffer refuses output beyond its size. The buffer is not embedded: io.Copy would call its ReadFrom, which has
// no limit.
type limitedBuffer struct {
	buffer bytes.Buffer
	max    int
	full   bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.full = b.full || b.buffer.Len()+len(p) > b.max; b.full {
		return 0, errOutput
	}
	return b.buffer.Write(p)
}
