package program

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// In many images Python is in a virtual environment. The virtual environment for the requirements must include that one's
// packages.
func TestVenvHasPackagesOfImage(t *testing.T) {
	dir := t.TempDir()
	image, made, requirements := filepath.Join(dir, "image"), filepath.Join(dir, "venvs", "made"), filepath.Join(dir, "requirements.txt")
	python := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	python("python3", "-m", "venv", "--without-pip", image)
	packages := python(filepath.Join(image, "bin", "python3"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
	for file, content := range map[string]string{filepath.Join(packages, "of_image.py"): "name = 'of the image'\n", requirements: ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(image, "bin")+":"+os.Getenv("PATH"))
	var stderr strings.Builder
	for range 2 {
		if err := makeVenv(made, requirements, io.Discard, &stderr); err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
	}
	if got := python(filepath.Join(made, "bin", "python3"), "-c", "import of_image; print(of_image.name)"); got != "of the image" {
		t.Errorf("got %q", got)
	}
}
