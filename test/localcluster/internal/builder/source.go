package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	buildv1 "github.com/openshift/api/build/v1"
)

// fetchSource clones the repository or receives what the client sends.
func (j *job) fetchSource(ctx context.Context) error {
	// The container may be a second attempt.
	if err := os.RemoveAll(j.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(j.dir, 0o777); err != nil {
		return err
	}
	source := j.build.Spec.Source
	if source.Git != nil {
		err := j.step(buildv1.StageFetchInputs, buildv1.StepFetchGitSource, func() error { return j.clone(ctx, source.Git) })
		if err != nil {
			return because(buildv1.StatusReasonFetchSourceFailed, err)
		}
	}
	if source.Binary != nil {
		if err := j.receive(os.Stdin, source.Binary); err != nil {
			return because(buildv1.StatusReasonFetchSourceFailed, err)
		}
	}
	if source.ContextDir != "" {
		if _, err := os.Stat(j.contextDir()); errors.Is(err, fs.ErrNotExist) {
			return because(buildv1.StatusReasonInvalidContextDirectory, fmt.Errorf("provided context directory does not exist: %s", source.ContextDir))
		}
	}
	return nil
}

func (j *job) receive(in io.Reader, source *buildv1.BinaryBuildSource) error {
	if source.AsFile != "" {
		fmt.Fprintf(j.out, "Receiving source from STDIN as file %s\n", source.AsFile)
		f, err := os.OpenFile(filepath.Join(j.dir, source.AsFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o664)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close())
	}
	fmt.Fprintln(j.out, "Receiving source from STDIN as archive ...")
	if err := extract(in, j.dir); err != nil {
		return fmt.Errorf("unable to extract binary build input, must be a zip, tar, or gzipped tar, or specified as a file: %w", err)
	}
	// What follows the archive's end is read too, or the sender would fail.
	_, err := io.Copy(io.Discard, in)
	return err
}
