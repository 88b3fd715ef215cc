// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/test/hostilegit"
)

// TestFolderOfOthers: mlenv run DIR runs no program that the folder's repository names.
func TestFolderOfOthers(t *testing.T) {
	hostilegit.Each(t, func(t *testing.T, dir string) {
		o := runOptions{params: newParams(mldevenv.Bundle)}
		values := map[string][]string{"repo-url": {dir}, "script": {"train.py"}, "launcher": {"command"}}
		upload, err := o.prepare(t.Context(), o.params.pipeline, values)
		if err != nil {
			t.Fatal(err)
		}
		upload.remove()
		t.Log(values["revision"])
	})
}
