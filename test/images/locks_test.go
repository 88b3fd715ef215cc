// SPDX-License-Identifier: Apache-2.0

package images

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// resolution describes the base that the locks of a flavour are resolved for.
type resolution struct {
	// base is a file in substitute-base with the packages of the flavour's base.
	base string
	// python is the base's version of Python.
	python string
	// libc is the version of the base's C library, in the form that wheels use.
	libc string
	// hashed flavours have a lock with hashes for each requirements file. The others have one lock without hashes.
	hashed bool
}

// resolutions has a row for each flavour. Hashes would keep the GPU flavours from
// being built on substitute-base/Dockerfile, whose Python has no wheels of some of their packages.
var resolutions = map[string]resolution{
	"pytorch-2.9-numpy2": {"pytorch-25.09-py3", "3.12", "manylinux_2_39", false},
	"pytorch-2.8-numpy1": {"pytorch-25.08-py3", "3.12", "manylinux_2_39", false},
	"cpu":                {"debian-trixie", "3.13", "manylinux_2_40", true},
}

// packages returns the base's packages: name, version, and the file's other fields.
func (r resolution) packages(t *testing.T) [][]string {
	t.Helper()
	var found [][]string
	for _, line := range lines(read(t, "substitute-base", r.base+".txt")) {
		found = append(found, strings.Fields(line))
	}
	return found
}

// requirements returns a flavour's requirements files. The first one is requirements.txt, which every build installs.
func requirements(t *testing.T, flavour string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(flavours, flavour, "requirements-*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{filepath.Join(flavours, flavour, "requirements.txt")}, found...)
}

// lockOf returns the lock of a requirements file.
func (r resolution) lockOf(requirements string) string {
	if !r.hashed {
		return filepath.Join(filepath.Dir(requirements), "lock.txt")
	}
	return filepath.Join(filepath.Dir(requirements), strings.Replace(filepath.Base(requirements), "requirements", "lock", 1))
}

// lockHeader returns the comment above a lock. It has a digest of everything that the locks of the flavour are resolved from.
func lockHeader(t *testing.T, flavour string) string {
	t.Helper()
	r := resolutions[flavour]
	digest := sha256.New()
	fmt.Fprintln(digest, r, r.packages(t))
	for _, file := range requirements(t, flavour) {
		fmt.Fprintln(digest, filepath.Base(file), lines(read(t, file)))
	}
	return fmt.Sprintf("# Written by make lock: see \"Changing versions\" in images/README.md.\n# inputs: sha256:%x\n", digest.Sum(nil))
}

// TestRequirementsArePinned: a lock lists everything that pip may install.
func TestRequirementsArePinned(t *testing.T) {
	pin := regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.+!]*$`)
	hashes := regexp.MustCompile(`^( --hash=sha256:[0-9a-f]{64})+$`)
	for name, folder := range folders(t) {
		r, ok := resolutions[name]
		if !ok {
			t.Errorf("%s has no row in resolutions", name)
			continue
		}
		always := lines(read(t, folder, "lock.txt"))
		for _, file := range requirements(t, name) {
			lock := r.lockOf(file)
			content := read(t, lock)
			if r.hashed && !strings.HasPrefix(content, lockHeader(t, name)) {
				t.Errorf("%s does not begin with %q: its inputs have changed, run make lock", lock, lockHeader(t, name))
			}
			locked := map[string]bool{}
			for _, line := range append(lines(content), always...) {
				version, files, _ := strings.Cut(line, " ")
				if !pin.MatchString(version) || r.hashed != hashes.MatchString(" "+files) {
					t.Errorf("%s: %q: want NAME==VERSION, with hashes: %t", lock, line, r.hashed)
				}
				locked[version] = true
			}
			for _, line := range lines(read(t, file)) {
				if !locked[line] {
					t.Errorf("%s: %s is not in %s", file, line, lock)
				}
			}
		}
	}
}

// TestPipChecksHashes: pip checks the hash of everything that it installs into the cpu flavour, and of the Node that
// code-server runs in.
func TestPipChecksHashes(t *testing.T) {
	pip := regexp.MustCompile(`\bpip install\b.*`)
	for _, file := range []string{"cpu/Dockerfile", "cpu/install-deepspeed.sh", "common/install-code-server.sh"} {
		calls := pip.FindAllString(read(t, flavours, file), -1)
		if len(calls) == 0 {
			t.Errorf("%s: no pip install found", file)
		}
		for _, call := range calls {
			if !strings.Contains(call, "--require-hashes --no-deps") {
				t.Errorf("%s: %q: want --require-hashes --no-deps", file, call)
			}
		}
	}
}
