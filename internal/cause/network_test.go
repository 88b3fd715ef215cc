// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// What downloads print without a network: requests 2.32 and urllib3 2, urllib of Python 3.12 behind torchvision, transformers 4.57, curl.
func TestNoNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		python agent.PythonError
		tail   []string
		want   string
	}{
		"requests": {python: agent.PythonError{Type: "requests.exceptions.ConnectionError", Message: "(MaxRetryError(\"HTTPSConnectionPool(" +
			"host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError('Failed to resolve')))"},
			want: "huggingface.co"},
		"transformers": {python: agent.PythonError{Type: "OSError", Message: "We couldn't connect to 'https://huggingface.co' to load " +
			"the files, and couldn't find them in the cached files."}, want: "huggingface.co"},
		"torchvision": {python: agent.PythonError{Type: "urllib.error.URLError", Message: "<urlopen error [Errno -2] Name or service not known>"},
			tail: []string{"Downloading https://ossci-datasets.s3.amazonaws.com/mnist/train.gz"}, want: "ossci-datasets.s3.amazonaws.com"},
		"curl": {tail: []string{"curl: (6) Could not resolve host: example.com"}, want: "example.com"},
		"the store where ranks meet": {python: agent.PythonError{Type: "torch.distributed.DistNetworkError", Message: "The client socket " +
			"has failed to connect to any network address of (ml-dev-env-0.ml-dev-env-headless, 29500): Name or service not known"}},
		"a URL in another error": {python: agent.PythonError{Type: "ValueError", Message: "see https://example.com/help"}},
	} {
		rank := agent.RankStatus{Exit: agent.Exit{Code: 1}, Tail: tc.tail}
		if tc.python.Type != "" {
			rank.Python = &tc.python
		}
		err := Cause{Rank: rank, Known: true}.Err(Job{Run: "run", Namespace: "ns"})
		said, next := "could not reach "+tc.want, "copy what it downloads to /datasets first"
		if got := strings.Contains(err.Error(), said) && strings.Contains(fail.NextOf(err), next); got != (tc.want != "") {
			t.Errorf("%s: got %v (%s), want %s", name, err, fail.NextOf(err), tc.want)
		}
	}
}
