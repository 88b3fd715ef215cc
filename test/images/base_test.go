// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBaseIsKept runs base.py as a Dockerfile does, and between its two runs changes a package
// that base.py must keep.
func TestBaseIsKept(t *testing.T) {
	t.Parallel()
	context, err := filepath.Abs(filepath.Join(flavours, "pytorch-2.8-numpy1"))
	if err != nil {
		t.Fatal(err)
	}
	wheels, site := t.TempDir(), t.TempDir()
	run(t, "python3", "substitute-base/wheels.py", "substitute-base/pytorch-25.08-py3.txt", wheels)
	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, "python3", append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", site}, files...)...)

	// base.py reads the list of programs next to it.
	record, common := t.TempDir(), t.TempDir()
	write(t, common, "base.py", []string{strings.TrimSuffix(read(t, flavours, "common", "base.py"), "\n")})
	write(t, common, "programs", []string{"# python", "python3"})
	base := func(verb string) (string, error) {
		command := exec.CommandContext(t.Context(), "python3", filepath.Join(common, "base.py"), verb, context, record)
		command.Env = append(os.Environ(), "PYTHONPATH="+site, "PYTHONDONTWRITEBYTECODE=1")
		output, err := command.CombinedOutput()
		return string(output), err
	}
	if output, err := base("record"); err != nil {
		t.Fatalf("base.py record: %v\n%s", err, output)
	}
	for _, want := range []string{"torch==2.8.0a0+34c6371d24.nv25.8\n", "numpy==1.26.4\n", "flash-attn==2.7.4.post1\n"} {
		if got := read(t, record, "base-constraints.txt"); !strings.Contains(got, want) {
			t.Errorf("constraints from the base: %q; want a line %q", got, want)
		}
	}
	if output, err := base("verify"); err != nil {
		t.Fatalf("base.py verify of an unchanged base: %v\n%s", err, output)
	}

	for _, test := range []struct{ name, file, old, new, want string }{
		{"another numpy", "numpy-1.26.4.dist-info/METADATA", "Version: 1.26.4", "Version: 2.2.6",
			"checking numpy: found version 2.2.6; want ==1.26.4"},
		{"torch of the same version", "torch-2.8.0a0+34c6371d24.nv25.8.dist-info/RECORD", "torch/__init__.py", "torch/_other.py",
			"comparing torch with the base image's"},
		{"another module", "flash_attn/__init__.py", "2.7.4.post1\"\n", "2.8.3\"\n", "comparing flash-attn with the base image's"},
		{"a requirement", "torchvision-0.23.0a0+substitute.dist-info/METADATA", "numpy", "numpy>=2",
			"torchvision 0.23.0a0+substitute requires numpy>=2; found 1.26.4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(site, test.file)
			before := read(t, path)
			after := strings.Replace(before, test.old, test.new, 1)
			if before == after {
				t.Fatalf("%s does not contain %q", test.file, test.old)
			}
			write(t, site, test.file, []string{strings.TrimSuffix(after, "\n")})
			defer write(t, site, test.file, []string{strings.TrimSuffix(before, "\n")})
			output, err := base("verify")
			if err == nil || !strings.Contains(output, test.want) {
				t.Errorf("base.py verify: %v, %q; want a failure with %q", err, output, test.want)
			}
		})
	}

	write(t, common, "programs", []string{"python3", "no-such-program"})
	if output, err := base("verify"); err == nil || !strings.Contains(output, "looking for programs in PATH: no-such-program not found") {
		t.Errorf("base.py verify without a program: %v, %q; want a failure that names it", err, output)
	}
}
