//go:build e2e

package images

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the requirements resolve to now into lock.txt")

const lockHeader = `# Every version that pip may install, written from the requirements files: see "Changing versions" in images/README.md.`

// uvVersion is the version of the resolver, from PyPI.
const uvVersion = "0.13.9"

// sourceOnly are the distributions for which PyPI has no wheel.
var sourceOnly = []string{"deepspeed"}

// TestPythonSetsResolve resolves every flavour's requirements for its Python and platform under
// the versions of its base. Stand-in wheels with the same names, versions and requirements
// represent the base. The result must be the flavour's lock.
func TestPythonSetsResolve(t *testing.T) {
	t.Parallel()
	uv := installUV(t)
	for _, test := range []struct{ flavour, base, python, platform string }{
		{"pytorch-2.9-numpy2", "pytorch-25.09-py3", "3.12", "x86_64-manylinux_2_39"},
		{"pytorch-2.8-numpy1", "pytorch-25.08-py3", "3.12", "x86_64-manylinux_2_39"},
		{"cpu", "debian-trixie", "3.13", "x86_64-manylinux_2_40"},
	} {
		t.Run(test.flavour, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			base := filepath.Join("substitute-base", test.base+".txt")
			run(t, "python3", "substitute-base/wheels.py", base, work)

			var constraints []string
			args := []string{"--find-links", work, "--python-version", test.python, "--python-platform", test.platform}
			for _, line := range lines(read(t, base)) {
				fields := strings.Fields(line)
				constraints = append(constraints, fields[0]+"=="+fields[1])
				args = append(args, "--no-emit-package", fields[0])
			}
			lock := filepath.Join(flavours, test.flavour, "lock.txt")
			if !*update {
				constraints = append(constraints, lines(read(t, lock))...)
			}
			// The same change as without-torchaudio.py makes to LLaMAFactory.
			args = append(args, "--constraints", write(t, work, "constraints.txt", constraints),
				"--override", write(t, work, "override.txt", []string{"torchaudio; sys_platform == 'never'"}))
			requirements, err := filepath.Glob(filepath.Join(flavours, test.flavour, "requirements*.txt"))
			if err != nil {
				t.Fatal(err)
			}
			resolved := lines(compile(t, uv, append(args, requirements...)...))
			if *update {
				write(t, filepath.Dir(lock), "lock.txt", append([]string{lockHeader}, resolved...))
			}
			want := lines(read(t, lock))
			if diff := cmp.Diff(want, resolved); diff != "" {
				t.Errorf("lock.txt is not what the requirements resolve to (-lock +resolved):\n%s", diff)
			}

			wheels := slices.DeleteFunc(want, func(pin string) bool {
				name, _, _ := strings.Cut(pin, "==")
				return slices.Contains(sourceOnly, name)
			})
			compile(t, uv, "--no-deps", "--no-build", "--python-version", test.python, "--python-platform", test.platform,
				write(t, work, "wheels.txt", wheels))
		})
	}
}

// compile resolves the requirements. A conflict fails the test with the resolver's message.
func compile(t *testing.T, uv string, args ...string) string {
	t.Helper()
	return run(t, uv, append([]string{"pip", "compile", "--quiet", "--no-header", "--no-annotate"}, args...)...)
}

// installUV puts the resolver into a folder of the test.
func installUV(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	run(t, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder, "uv=="+uvVersion)
	return filepath.Join(folder, "bin", "uv")
}

func write(t *testing.T, folder, name string, lines []string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), name, args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("running %s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}
