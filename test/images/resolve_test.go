// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package images

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the requirements resolve to now into the locks")

const plainHeader = `# Every version that pip may install, written from the requirements files: see "Changing versions" in ` +
	`images/README.md.`

// uvVersion is the version of the resolver, from PyPI.
const uvVersion = "0.13.9"

// sourceOnly is the distribution for which PyPI has no wheel. Its lock has the hash of the source distribution.
const sourceOnly = "deepspeed"

// TestPythonSetsResolve resolves every flavour's requirements for its Python and platform under
// the versions of its base. Stand-in wheels with the same names, versions and requirements
// represent the base. The result must be the flavour's locks.
func TestPythonSetsResolve(t *testing.T) {
	t.Parallel()
	uv := installUV(t)
	for flavour, r := range resolutions {
		t.Run(flavour, func(t *testing.T) {
			t.Parallel()
			work := t.TempDir()
			run(t, "python3", "substitute-base/wheels.py", filepath.Join("substitute-base", r.base+".txt"), work)

			var constraints []string
			args := []string{"--find-links", work, "--python-version", r.python, "--python-platform", "x86_64-" + r.libc}
			for _, fields := range r.packages(t) {
				constraints = append(constraints, fields[0]+"=="+fields[1])
				args = append(args, "--no-emit-package", fields[0])
			}
			files := requirements(t, flavour)
			if !*update {
				for _, file := range files {
					constraints = append(constraints, slices.Collect(maps.Keys(hashes(read(t, r.lockOf(file)))))...)
				}
			}
			// without-torchaudio.py changes LLaMAFactory in the same way.
			args = append(args, "--override", write(t, work, "override.txt", []string{"torchaudio; sys_platform == 'never'"}))
			resolve := func(under []string, files ...string) []string {
				return lines(compile(t, uv, slices.Concat(args, []string{"--constraints", write(t, work, "constraints.txt", under)}, files)...))
			}
			// The order of the files decides which versions the resolver tries first.
			all := resolve(constraints, slices.Sorted(slices.Values(files))...)
			pinned := slices.Concat(constraints, all)
			always := resolve(pinned, files[0])
			available := wheels(t, uv, r, all)
			if !r.hashed {
				if *update {
					write(t, filepath.Dir(files[0]), "lock.txt", append([]string{plainHeader}, all...))
				}
				if diff := cmp.Diff(lines(read(t, r.lockOf(files[0]))), all); diff != "" {
					t.Errorf("lock.txt is not what the requirements resolve to (-lock +resolved):\n%s", diff)
				}
				return
			}
			for i, file := range files {
				pins := always
				if i > 0 { // omits packages that requirements.txt already installs
					pins = slices.DeleteFunc(resolve(pinned, files[0], file), func(pin string) bool { return slices.Contains(always, pin) })
				}
				if *update {
					var rows []string
					for _, pin := range pins {
						rows = append(rows, pin+" --hash="+strings.Join(available[pin], " --hash="))
					}
					write(t, filepath.Dir(file), filepath.Base(r.lockOf(file)), append([]string{strings.TrimSuffix(lockHeader(t, flavour), "\n")},
						rows...))
				}
				locked := hashes(read(t, r.lockOf(file)))
				if diff := cmp.Diff(slices.Sorted(maps.Keys(locked)), slices.Sorted(slices.Values(pins))); diff != "" {
					t.Errorf("%s is not what the requirements resolve to (-lock +resolved):\n%s", r.lockOf(file), diff)
				}
				for pin, allowed := range locked {
					for _, hash := range allowed { // PyPI may have more files; pip does not install them
						if !slices.Contains(available[pin], hash) {
							t.Errorf("%s: PyPI has no file of %s with hash %s for this platform", r.lockOf(file), pin, hash)
						}
					}
				}
			}
		})
	}
}

// wheels returns the hashes of the files that pip may install for each pin, on any of the platforms. For sourceOnly it is
// the source distribution. A pin for which PyPI has no wheel fails the test.
func wheels(t *testing.T, uv string, r resolution, pins []string) map[string][]string {
	t.Helper()
	work := t.TempDir()
	name, version, hash := regexp.MustCompile(`(?m)^name = "(.*)"`), regexp.MustCompile(`(?m)^version = "(.*)"`), regexp.MustCompile(
		`sha256 = "([0-9a-f]{64})"`)
	found := map[string][]string{}
	architectures := []string{"x86_64"}
	if r.hashed {
		architectures = append(architectures, "aarch64")
	}
	for _, architecture := range architectures {
		lock := compile(t, uv, "--format", "pylock.toml", "--no-deps", "--only-binary", ":all:", "--no-binary", sourceOnly,
			"--python-version", r.python, "--python-platform", architecture+"-"+r.libc, write(t, work, "pins.txt", pins))
		for _, section := range strings.Split(lock, "[[packages]]")[1:] {
			pin := name.FindStringSubmatch(section)[1] + "==" + version.FindStringSubmatch(section)[1]
			for _, match := range hash.FindAllStringSubmatch(section, -1) {
				found[pin] = append(found[pin], "sha256:"+match[1])
			}
		}
	}
	for _, pin := range pins {
		slices.Sort(found[pin])
		if found[pin] = slices.Compact(found[pin]); len(found[pin]) == 0 {
			t.Fatalf("%s: no file found on PyPI", pin)
		}
	}
	return found
}

// hashes returns the hashes in a lock by pin.
func hashes(lock string) map[string][]string {
	found := map[string][]string{}
	for _, line := range lines(lock) {
		fields := strings.Fields(line)
		found[fields[0]] = []string{}
		for _, hash := range fields[1:] {
			found[fields[0]] = append(found[fields[0]], strings.TrimPrefix(hash, "--hash="))
		}
	}
	return found
}

// compile resolves the requirements. A conflict fails the test with the resolver's message.
func compile(t *testing.T, uv string, args ...string) string {
	t.Helper()
	return run(t, uv, append([]string{"pip", "compile", "--quiet", "--no-header", "--no-annotate"}, args...)...)
}

// installUV installs the resolver into a folder of the test.
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
