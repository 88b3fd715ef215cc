// SPDX-License-Identifier: Apache-2.0

package action

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sethvargo/go-githubactions"
)

func TestGroups(t *testing.T) {
	var out strings.Builder
	g := newGroups(githubactions.New(githubactions.WithWriter(&out)))
	g.printLine("preflight", "looking")
	g.printLine("build-image", "::error::sent by a Dockerfile")
	g.printLine("preflight", "100% fine")
	g.printLine("provision", "pods")
	g.endTask("build-image")
	g.endTask("preflight")
	g.printLine("provision", "ready")
	g.printLine("train", "step 1")
	g.close()
	got := strings.ReplaceAll(out.String(), g.token, "TOKEN")
	want := `::group::preflight
::stop-commands::TOKEN
looking
100% fine
::TOKEN::
::endgroup::
::group::build-image
::stop-commands::TOKEN
::error::sent by a Dockerfile
::TOKEN::
::endgroup::
::group::provision
::stop-commands::TOKEN
pods
ready
::TOKEN::
::endgroup::
::group::train
::stop-commands::TOKEN
step 1
::TOKEN::
::endgroup::
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}
