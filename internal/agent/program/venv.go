package program

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// inheritPackages is needed if the image's Python is itself one of a virtual environment: --system-site-packages means those
// of the Python below it.
const inheritPackages = `import site, sys
if sys.prefix != sys.base_prefix:
    with open("%s/lib/python%d.%d/site-packages/image.pth" % (sys.argv[1], *sys.version_info[:2]), "w") as file:
        for path in site.getsitepackages([sys.prefix]):
            print("import site; site.addsitedir(%r)" % path, file=file)
`

// makeVenv creates the virtual environment once for the image's Python: a file in it names the Python for which it is complete. The
// environment includes the image's packages, so that pip does not install torch again.
func makeVenv(dir, requirements string, stdout, stderr io.Writer) error {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.version, sys.prefix)").Output()
	if err != nil {
		return fmt.Errorf("asking the image's Python what it is: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o2775); err != nil {
		return err
	}
	// A pip of another step, or of one that was killed, may still be writing to it.
	lock, err := claimfile.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o664)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil { // the file system has no locks
		fmt.Fprintf(stderr, "%s is not locked: %v\n", dir, err)
	}
	complete := filepath.Join(dir, ".complete")
	if found, err := claimfile.Read(complete, 4<<10); err == nil && string(found) == string(python) {
		fmt.Fprintf(stdout, "the environment %s exists\n", dir)
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"python3", "-m", "venv", "--system-site-packages", dir},
		{"python3", "-c", inheritPackages, dir},
		{filepath.Join(dir, "bin", "python3"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--requirement", requirements},
	} {
		process := exec.Command(command[0], command[1:]...)
		process.Stdout, process.Stderr = stdout, stderr
		if err := process.Run(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", strings.Join(command, " "), err), os.RemoveAll(dir))
		}
	}
	return os.WriteFile(complete, python, 0o664)
}
