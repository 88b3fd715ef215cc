package bundle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/ml-dev-env/ml-dev-env"

// Compile compiles the steps' program and the agent from the sources in the
// folder source into the folder dir, static and without paths of this machine.
func Compile(ctx context.Context, source, dir, version string) (Contents, error) {
	contents := Contents{Program: filepath.Join(dir, "ml-dev-env"), Agent: filepath.Join(dir, "mlenv-agent"), Version: version}
	for _, each := range []struct{ program, pkg string }{{contents.Program, "/cmd/steps"}, {contents.Agent, "/cmd/mlenv-agent"}} {
		// The version is said by -X alone, so that the same sources make the same programs in any checkout.
		// Debugging information would be stripped after it was compiled.
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
			"-ldflags=-s -w -X "+module+"/internal/version.number="+version, "-o", each.program, module+each.pkg)
		build.Dir = source
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := build.CombinedOutput(); err != nil {
			return Contents{}, fmt.Errorf("compiling %s: %w\n%s", module+each.pkg, err, strings.TrimSpace(string(out)))
		}
	}
	return contents, nil
}
