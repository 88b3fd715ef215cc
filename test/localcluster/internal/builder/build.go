// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	"golang.org/x/sys/unix"
)

// The builder tries pulls and pushes three times, five seconds apart.
const (
	retries    = 2
	retryDelay = 5 * time.Second
)

// Files for buildah.
const (
	pullAuth = "/tmp/pull-auth.json"
	pushAuth = "/tmp/push-auth.json"
)

func (j *job) dockerBuild(ctx context.Context) error {
	spec := j.build.Spec
	docker := spec.Strategy.DockerStrategy
	content, err := os.ReadFile(j.dockerfile())
	if err != nil {
		return err
	}
	images, err := bases(string(content), docker.BuildArgs)
	if err != nil {
		return err
	}
	if err := j.prepare(); err != nil {
		return err
	}
	for _, image := range images {
		if err := j.pull(ctx, image); err != nil {
			return because(buildv1.StatusReasonPullBuilderImageFailed, fmt.Errorf("failed to pull image: %w", err))
		}
	}
	tag, err := randomTag(j.build.Namespace, j.build.Name)
	if err != nil {
		return err
	}
	arguments, err := j.buildArguments(tag)
	if err != nil {
		return err
	}
	err = j.step(buildv1.StageBuild, buildv1.StepDockerBuild, func() error { return j.buildah(ctx, arguments...) })
	if err != nil {
		return because(buildv1.StatusReasonDockerBuildFailed, err)
	}
	if spec.Output.To == nil || spec.Output.To.Name == "" {
		fmt.Fprintln(j.out, "Build complete, no image push requested")
		return nil
	}
	return because(buildv1.StatusReasonPushImageToRegistryFailed, j.push(ctx, tag, j.build.Status.OutputDockerImageReference))
}

// prepare sets up registries, storage and credentials.
func (j *job) prepare() error {
	if err := configureRegistries(os.Getenv(InsecureRegistryVariable)); err != nil {
		return err
	}
	if err := prepareStorage(StorageDir, os.Getenv(DiskSizeVariable)); err != nil {
		return err
	}
	for dir, file := range map[string]string{PullSecretDir: pullAuth, PushSecretDir: pushAuth} {
		if err := authFile(dir, file); err != nil {
			return err
		}
	}
	return nil
}

// randomTag returns the temporary name of the image during the build.
func randomTag(namespace, name string) (string, error) {
	b := make([]byte, 4)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	return fmt.Sprintf("temp.builder.openshift.io/%s/%s:%s", namespace, name, hex.EncodeToString(b)), nil
}

// buildArguments returns the arguments of `buildah build`. With chroot isolation a RUN step is a process of this
// container and counts for its limits.
func (j *job) buildArguments(tag string) ([]string, error) {
	docker := j.build.Spec.Strategy.DockerStrategy
	args := []string{
		"build", "--isolation=chroot", "--format=docker", "--network=host", "--pull=never", "--layers",
		"--authfile=" + pullAuth, "--file=" + j.dockerfile(), "--tag=" + tag,
	}
	limits, err := ownLimits()
	if err != nil {
		return nil, err
	}
	args = append(args, limits...)
	for _, a := range docker.BuildArgs {
		args = append(args, "--build-arg="+a.Name+"="+a.Value)
	}
	for _, v := range docker.Volumes {
		for _, m := range v.Mounts {
			args = append(args, "--volume="+filepath.Join(VolumesDir, v.Name)+":"+m.DestinationPath+":ro")
		}
	}
	return append(args, j.dir), nil
}

// ownLimits returns arguments that keep this container's limits for RUN steps. buildah would raise the limits, which
// requires a right that not every machine grants.
func ownLimits() ([]string, error) {
	var args []string
	for name, number := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(number, &limit); err != nil {
			return nil, fmt.Errorf("reading the limit of %s: %w", name, err)
		}
		args = append(args, fmt.Sprintf("--ulimit=%s=%d:%d", name, int64(limit.Cur), int64(limit.Max)))
	}
	return args, nil
}

func (j *job) pull(ctx context.Context, image string) error {
	fmt.Fprintf(j.out, "\nPulling image %s ...\n", image)
	return j.step(buildv1.StagePullImages, buildv1.StepPullBaseImage, func() error {
		return j.retry(ctx, "Pull", func() error { return j.buildah(ctx, "pull", "--authfile="+pullAuth, image) })
	})
}

func (j *job) push(ctx context.Context, tag, target string) error {
	fmt.Fprintf(j.out, "\nPushing image %s ...\n", target)
	digest := "/tmp/digest"
	err := j.step(buildv1.StagePushImage, buildv1.StepPushDockerImage, func() error {
		return j.retry(ctx, "Push", func() error {
			// No slow network is involved, so compression would only cost time.
			return j.buildah(ctx, "push", "--authfile="+pushAuth, "--disable-compression", "--digestfile="+digest, tag, "docker://"+target)
		})
	})
	if err != nil {
		return fmt.Errorf("Failed to push image: %w", err) //nolint:staticcheck // OpenShift's words
	}
	content, err := os.ReadFile(digest)
	if err != nil {
		return err
	}
	j.report.ImageDigest = strings.TrimSpace(string(content))
	repository := target
	if i := strings.LastIndex(target, ":"); i > strings.LastIndex(target, "/") {
		repository = target[:i]
	}
	fmt.Fprintf(j.out, "Successfully pushed %s@%s\nPush successful\n", repository, j.report.ImageDigest)
	return nil
}

func (j *job) retry(ctx context.Context, name string, action func() error) error {
	for attempt := 0; ; attempt++ {
		err := action()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if attempt == retries {
			//nolint:staticcheck // OpenShift's words
			return fmt.Errorf("After retrying %d times, %s image still failed due to error: %w", retries, name, err)
		}
		fmt.Fprintf(j.out, "Warning: %s failed, retrying in %s ...\n", name, retryDelay)
		select {
		case <-time.After(retryDelay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// buildah runs buildah with its output in the log. The error contains buildah's final error message.
func (j *job) buildah(ctx context.Context, args ...string) error {
	words := &errorLines{out: j.out}
	cmd := exec.CommandContext(ctx, "buildah", args...)
	cmd.Stdout, cmd.Stderr = j.out, words
	cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+storageConf, "BUILDAH_ISOLATION=chroot", "TMPDIR="+StorageDir)
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if said := words.errors(); said != "" {
		return errors.New(said)
	}
	return fmt.Errorf("buildah %s: %w", args[0], err)
}

// errorLines passes on buildah's standard error, except the lines of its final error, which the caller puts into
// OpenShift's form.
type errorLines struct {
	out  io.Writer
	rest string
	last []string
}

func (e *errorLines) Write(p []byte) (int, error) {
	lines := strings.Split(e.rest+string(p), "\n")
	e.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if strings.HasPrefix(line, "Error: ") || len(e.last) > 0 {
			e.last = append(e.last, line)
			continue
		}
		if _, err := fmt.Fprintln(e.out, line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (e *errorLines) errors() string {
	return strings.TrimPrefix(strings.TrimSpace(strings.Join(append(e.last, e.rest), "\n")), "Error: ")
}
