// SPDX-License-Identifier: Apache-2.0

package literal

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/kubelet"
)

// FuzzText checks that the kubelet turns what Text returns into the text itself.
func FuzzText(f *testing.F) {
	for _, text := range []string{"", "$", "$$", "^a$$", "$(HOME)", "$$(HOME)", "$(", "$()", "é$é$", "http://user:pa$$word@proxy:3128"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got := kubelet.Expand(Escape(text), map[string]string{"HOME": "/tekton/home"}); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	})
}
