// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"errors"
	"fmt"
	"io"
	"os"

	buildv1 "github.com/openshift/api/build/v1"
)

// fetchSource receives the archive that the client sends.
func (j *job) fetchSource() error {
	// The container may be a second attempt.
	if err := errors.Join(os.RemoveAll(j.dir), os.MkdirAll(j.dir, 0o777)); err != nil {
		return err
	}
	fmt.Fprintln(j.out, "Receiving source from STDIN as archive ...")
	if err := extract(os.Stdin, j.dir); err != nil {
		return because(buildv1.StatusReasonFetchSourceFailed,
			fmt.Errorf("unable to extract binary build input, must be a zip, tar, or gzipped tar, or specified as a file: %w", err))
	}
	// Read the rest after the end of the archive too, because otherwise the sender would fail.
	_, err := io.Copy(io.Discard, os.Stdin)
	return because(buildv1.StatusReasonFetchSourceFailed, err)
}
