// SPDX-License-Identifier: Apache-2.0

// Package builder implements the program in the containers of a build's pod, a stand-in for OpenShift's builder: it
// fetches the source, completes the Dockerfile, builds with buildah and pushes.
package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

// Commands of the program, one for each container.
const (
	CommandSource     = "openshift-git-clone"
	CommandDockerfile = "openshift-manage-dockerfile"
	CommandBuild      = "openshift-docker-build"
)

// Paths in the pod.
const (
	WorkDir        = "/tmp/build"
	StorageDir     = "/var/lib/containers/storage"
	PushSecretDir  = "/var/run/secrets/openshift.io/push"
	PullSecretDir  = "/var/run/secrets/openshift.io/pull"
	VolumesDir     = "/var/run/openshift.io/volumes"
	terminationLog = "/dev/termination-log"
)

// Environment variables with values that the controller knows and the Build does not contain.
const (
	// DiskSizeVariable is the size of the disk that images are built on, as a Kubernetes quantity.
	DiskSizeVariable = "LOCALCLUSTER_BUILD_DISK_SIZE"
	// InsecureRegistryVariable is HOST:PORT of the registry without TLS.
	InsecureRegistryVariable = "LOCALCLUSTER_INSECURE_REGISTRY"
)

// maxReport is the maximum size of a termination message that the kubelet keeps, in bytes.
const maxReport = 4096

// job is the work of one container.
type job struct {
	build *buildv1.Build
	// dir contains the source. The image is built in it.
	dir    string
	out    io.Writer
	report buildstatus.Report
}

// reasonError is a failure that the Build's status names.
type reasonError struct {
	reason buildv1.StatusReason
	err    error
}

func (e reasonError) Error() string { return e.err.Error() }
func (e reasonError) Unwrap() error { return e.err }

// because adds a reason to an error.
func because(reason buildv1.StatusReason, err error) error {
	if err == nil {
		return nil
	}
	return reasonError{reason, err}
}

// Main runs the command and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	tail := &tail{}
	j := &job{dir: filepath.Join(WorkDir, "inputs"), out: io.MultiWriter(os.Stdout, tail)}
	err := j.run(ctx, args)
	if len(args) == 1 && args[0] == CommandBuild {
		// The pod exists as long as its Build, and would keep gigabytes.
		empty(StorageDir)
	}
	if ctx.Err() != nil {
		// The controller knows why the build was stopped.
		return 143
	}
	if err != nil {
		fmt.Fprintf(j.out, "error: %v\n", err)
		var why reasonError
		j.report.Reason = buildv1.StatusReasonGenericBuildFailed
		if errors.As(err, &why) {
			j.report.Reason = why.reason
		}
		j.report.LogTail = tail.String()
	}
	if werr := os.WriteFile(terminationLog, j.report.Encode(maxReport), 0o644); werr != nil {
		fmt.Fprintf(os.Stderr, "error: reporting: %v\n", werr)
	}
	if err != nil {
		return 1
	}
	return 0
}

func (j *job) run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments; there must be one, the name of the command", len(args))
	}
	j.build = &buildv1.Build{}
	if err := json.Unmarshal([]byte(os.Getenv("BUILD")), j.build); err != nil {
		return fmt.Errorf("unable to parse build string: %w", err)
	}
	switch args[0] {
	case CommandSource:
		return j.fetchSource()
	case CommandDockerfile:
		return because(buildv1.StatusReasonManageDockerfileFailed, j.manageDockerfile())
	case CommandBuild:
		if err := j.dockerBuild(ctx); err != nil {
			return fmt.Errorf("build error: %w", err)
		}
		return nil
	}
	return fmt.Errorf("no command is named %q", args[0])
}

// step runs a step and records its duration in the report.
func (j *job) step(stage buildv1.StageName, name buildv1.StepName, run func() error) error {
	start := time.Now()
	err := run()
	took := time.Since(start).Milliseconds()
	step := buildv1.StepInfo{Name: name, StartTime: metav1.NewTime(start), DurationMilliseconds: took}
	if n := len(j.report.Stages); n > 0 && j.report.Stages[n-1].Name == stage {
		last := &j.report.Stages[n-1]
		last.Steps = append(last.Steps, step)
		last.DurationMilliseconds += took
		return err
	}
	j.report.Stages = append(j.report.Stages, buildv1.StageInfo{
		Name: stage, StartTime: metav1.NewTime(start), DurationMilliseconds: took, Steps: []buildv1.StepInfo{step},
	})
	return err
}

func (j *job) dockerfile() string { return filepath.Join(j.dir, "Dockerfile") }
