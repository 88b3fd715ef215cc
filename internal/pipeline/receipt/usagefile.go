// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// UsageFile is the file with the usage of deleted local runs.
type UsageFile string

// Read returns the usage, none if there is no file.
func (f UsageFile) Read() (sums UsageSums, err error) {
	err = claimfile.ReadJSON(string(f), maxSize+maxPart, &sums)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return UsageSums{}, fmt.Errorf("reading the usage of deleted runs: %w", err)
	}
	return sums, nil
}

// Keep adds the usage of a run that is about to be deleted.
func (f UsageFile) Keep(u Usage, now time.Time) error {
	sums, err := f.Read()
	if err != nil {
		return err
	}
	content, err := sums.add([]Usage{u}, now)
	if err == nil {
		err = claimfile.Replace(string(f), filepath.Dir(string(f)), content)
	}
	if err != nil {
		return fmt.Errorf("keeping the usage of run %s: %w", u.Run, err)
	}
	return nil
}
