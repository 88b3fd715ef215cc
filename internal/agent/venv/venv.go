// SPDX-License-Identifier: Apache-2.0

// Package venv creates, finds and collects the virtual environments of requirements files on a claim. Environments with different
// images share the claim, so each Python has its own virtual environment, and a complete one stays as it is.
package venv

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Identify is a program of Python that prints what a virtual environment must have in common with the Python that uses it.
const Identify = `import os, sys, sysconfig
print(sys.version, sys.prefix, sys.base_prefix, sysconfig.get_config_var("SOABI"), os.uname().machine)`

// inheritPackages is needed if the image's Python is itself one of a virtual environment: --system-site-packages means those
// of the Python below it.
const inheritPackages = `import site, sys
if sys.prefix != sys.base_prefix:
    with open("%s/lib/python%d.%d/site-packages/image.pth" % (sys.argv[1], *sys.version_info[:2]), "w") as file:
        for path in site.getsitepackages([sys.prefix]):
            print("import site; site.addsitedir(%r)" % path, file=file)
`

// Files in the folder of a virtual environment.
const (
	// completeFile has what Identify printed, once everything is installed.
	completeFile = ".complete"
	// usedFile is as old as the last use.
	usedFile = ".used"
	// repositoryCopy is the repository as pip saw it, if something that was installed is still there.
	repositoryCopy = "repository"
)

// linkOf returns the name of the virtual environment of a requirements file, whose digest ends base, for the Python that printed python. It
// is a link, so that a complete environment takes its place in one step and nothing is ever installed into one that is used.
func linkOf(base string, python []byte) string {
	const digits = 16
	return base + "-" + fmt.Sprintf("%x", sha256.Sum256(python))[:digits]
}

// Make creates the virtual environment of base and of the Python in PATH, unless it exists. It includes the image's packages, so that
// pip does not install torch again.
func Make(base, requirements string, stdout, stderr io.Writer) error {
	python, err := exec.Command("python3", "-I", "-c", Identify).Output()
	if err != nil {
		return fmt.Errorf("asking the image's Python what it is: %w", err)
	}
	link := linkOf(base, python)
	if err := os.MkdirAll(filepath.Dir(link), 0o775); err != nil {
		return err
	}
	// A pip of another step, or of one that was killed, may still be installing the same.
	lock, err := claimfile.OpenFile(link+".lock", os.O_CREATE|os.O_RDWR, 0o664)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil { // the file system has no locks: both install, and the first one stays
		fmt.Fprintf(stderr, "%s is not locked: %v\n", link, err)
	}
	if dir, err := find(link); err == nil {
		fmt.Fprintf(stdout, "the environment %s exists\n", dir)
		return use(dir)
	}
	dir, err := install(link, requirements, python, stdout, stderr)
	if err != nil {
		return err
	}
	return publish(link, dir)
}

// pip is a program of Python: pip without the modules of the folder in which it runs, which may have the names of Python's own.
const pip = `import sys
sys.path[:] = [path for path in sys.path if path]
import runpy
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)`

var (
	// optionLine is a comment of a requirements file with options of pip that the file's format does not have.
	optionLine = regexp.MustCompile(`(?m)^# mlenv: pip (.*?)[ \t\r]*$`)
	// allowed are those about how packages are built. Others would install elsewhere, or something else.
	allowed = regexp.MustCompile(`^--(no-build-isolation|no-deps|prefer-binary|(no-binary|only-binary|config-settings)=\S+)$`)
)

// optionsIn returns the options in the comments of a requirements file. It follows no link out of the current folder, or that of the file.
func optionsIn(requirements string) (options []string, err error) {
	const most = 1 << 20 // bytes
	folder, name := ".", requirements
	if filepath.IsAbs(name) {
		folder, name = filepath.Split(name)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	content, err := claimfile.ReadIn(root, name, most)
	if err != nil {
		return nil, err
	}
	for _, line := range optionLine.FindAllSubmatch(content, -1) {
		for _, option := range strings.Fields(string(line[1])) {
			if !allowed.MatchString(option) {
				return nil, fmt.Errorf("%s: the comment for pip has %q: want --no-build-isolation, --no-deps, --prefer-binary, "+
					"--no-binary=PACKAGES, --only-binary=PACKAGES or --config-settings=KEY=VALUE", requirements, option)
			}
			options = append(options, option)
		}
	}
	return options, nil
}

// install installs into a new folder. pip runs in a copy of the current folder, a pinned tree: it writes next to packages of the
// repository that it builds, and links to those that are to be edited.
func install(link, requirements string, python []byte, stdout, stderr io.Writer) (dir string, err error) {
	folder := filepath.Dir(link)
	if dir, err = os.MkdirTemp(folder, filepath.Base(link)+".*"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, claimfile.RemoveAll(folder, dir))
		}
	}()
	if err := os.Chmod(dir, os.ModeSetgid|0o775); err != nil { //nolint:gosec // other user IDs of the group use it
		return "", err
	}
	repository := filepath.Join(dir, repositoryCopy)
	if err := copyTree(repository, "."); err != nil {
		return "", fmt.Errorf("copying the repository for pip: %w", err)
	}
	options, err := optionsIn(requirements)
	if err != nil {
		return "", err
	}
	for _, command := range []*exec.Cmd{
		commandIn(folder, "python3", "-I", "-m", "venv", "--system-site-packages", dir),
		commandIn(folder, "python3", "-I", "-c", inheritPackages, dir),
		commandIn(repository, filepath.Join(dir, "bin", "python3"), slices.Concat([]string{"-c", pip, "install",
			"--disable-pip-version-check", "--no-input", "--progress-bar=off", "--requirement", requirements}, options)...),
	} {
		command.Stdout, command.Stderr = stdout, stderr
		if err := command.Run(); err != nil {
			return "", fmt.Errorf("%s: %w", strings.ReplaceAll(strings.Join(command.Args, " "), "-c "+pip, "-m pip"), err)
		}
	}
	needed, err := leadsTo(dir, repository)
	if err == nil && !needed {
		err = claimfile.RemoveAll(dir, repository)
	}
	return dir, errors.Join(err, use(dir), claimfile.Replace(filepath.Join(dir, completeFile), dir, python))
}

func commandIn(dir, program string, args ...string) *exec.Cmd {
	command := exec.Command(program, args...)
	command.Dir = dir
	return command
}

// publish gives a complete folder its name, unless another one has it.
func publish(link, dir string) error {
	if err := os.Symlink(filepath.Base(dir), link); err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	if _, err := find(link); err == nil { // another pip was first; nothing uses this one
		return claimfile.RemoveAll(filepath.Dir(link), dir)
	}
	replacing := dir + ".link"
	if err := os.Symlink(filepath.Base(dir), replacing); err != nil {
		return err
	}
	if err := os.Rename(replacing, link); err != nil {
		return errors.Join(fmt.Errorf("replacing %s, which ml-dev-env did not create; move it away: %w", link, err), os.Remove(replacing))
	}
	return nil
}

// Find returns the folder of the virtual environment of base for the Python that printed python, and notes its use. The error is
// os.ErrNotExist if there is none.
func Find(base string, python []byte) (dir string, err error) {
	link := linkOf(base, python)
	if dir, err = find(link); err != nil {
		return "", err
	}
	if err := use(dir); err != nil {
		return "", err
	}
	// Collect may have begun before the use: then the link is gone, or it sees the use.
	return find(link)
}

// find returns the complete folder behind a link.
func find(link string) (dir string, err error) {
	target, err := os.Readlink(link)
	if err != nil {
		return "", fmt.Errorf("finding a virtual environment: %w", err)
	}
	if !strings.HasPrefix(target, filepath.Base(link)+".") || filepath.Base(target) != target {
		return "", fmt.Errorf("finding a virtual environment: %s is a link to %s: %w", link, target, os.ErrNotExist)
	}
	dir = filepath.Join(filepath.Dir(link), target)
	const most = 4 << 10
	if _, err := claimfile.Read(filepath.Join(dir, completeFile), most); err != nil {
		return "", fmt.Errorf("finding a virtual environment: %s is not complete (%w): %w", dir, err, os.ErrNotExist)
	}
	return dir, nil
}

// use notes that a folder is used now, also for other users of the group, who may not set its time.
func use(dir string) error { return claimfile.Replace(filepath.Join(dir, usedFile), dir, nil) }
