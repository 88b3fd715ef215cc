// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
)

const module = "github.com/ml-dev-env/ml-dev-env"

const home = "https://" + module

// Source is what programs are compiled from.
type Source struct {
	Dir     string
	Version string
	// Revision is the last commit that changed a source of the programs, and Changed its time; both are empty outside git.
	Revision string
	Changed  time.Time
}

// compiled are the sources of the steps and the agent. The commit of a release, which writes the image's digest into
// tasks/ and pipelines/, must not change the digest.
var compiled = [...]string{"go.mod", "go.sum", "LICENSE", "embed.go", "cmd", "images", "internal"}

// Describe reads the sources' revision from git, and their version unless it is given: "devel" without git.
func Describe(ctx context.Context, dir, version string) Source {
	source := Source{Dir: dir, Version: cmp.Or(version, "devel")}
	repository, err := git.OpenFolder(ctx, dir)
	if err != nil {
		return source
	}
	defer repository.Close()
	if version == "" {
		if tag, err := repository.Version(ctx); err == nil {
			source.Version = tag
			if changed, err := repository.Changed(ctx, false); err != nil || changed {
				source.Version += "-dirty"
			}
		}
	}
	if revision, at, err := repository.LastChange(ctx, compiled[:]...); err == nil {
		source.Revision, source.Changed = revision, at
	}
	return source
}

// Platforms returns the platforms of OpenShift's nodes with NVIDIA's GPUs.
func Platforms() []v1.Platform {
	return []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}
}

// Compile compiles the steps' program and the agent for the platform into the folder dir. The programs are static and
// reproducible in any folder with the same version of Go.
func (s Source) Compile(ctx context.Context, dir string, platform v1.Platform) (Contents, error) {
	contents := Contents{Source: s, Platform: platform, Program: filepath.Join(dir, "ml-dev-env"), Agent: filepath.Join(dir, "mlenv-agent")}
	if err := s.CompileProgram(ctx, "cmd/steps", contents.Program, platform); err != nil {
		return Contents{}, err
	}
	if err := s.CompileProgram(ctx, "cmd/mlenv-agent", contents.Agent, platform); err != nil {
		return Contents{}, err
	}
	return contents, nil
}

// CompileProgram compiles one program of the sources into the file program.
func (s Source) CompileProgram(ctx context.Context, pkg, program string, platform v1.Platform) error {
	// -X sets the version, because Go would read another one from git. Without -dwarf=false Go would compile debugging
	// information and strip it afterwards.
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags=-s -w -X "+module+"/internal/version.number="+s.Version, "-o", program, module+"/"+pkg)
	build.Dir = s.Dir
	// Without the settings of this process that change a program.
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GOWORK=off",
		"GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s for %s: %w\n%s", pkg, platform, err, strings.TrimSpace(string(out)))
	}
	return nil
}
