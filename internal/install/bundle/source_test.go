// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/hostilegit"
)

// TestDescribeOthers: no program that the repository of the sources names is run.
func TestDescribeOthers(t *testing.T) {
	hostilegit.Each(t, func(t *testing.T, dir string) {
		t.Log(Describe(t.Context(), dir, ""))
	})
}
