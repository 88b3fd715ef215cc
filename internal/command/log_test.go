// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"
	"testing"
)

// TestNoMessageForgesALine: each line of the log that is not indented is the first of a message.
func TestNoMessageForgesALine(t *testing.T) {
	for message, want := range map[string]string{
		"loss 1\ntrain failed: Internal: run me":  "loss 1\n  train failed: Internal: run me\n",
		"loss 1\r\ntrain failed\n":                "loss 1\n  train failed\n  \n",
		"loss 1\u2028x\x0b\x0ctrain failed: x":    "loss 1\u2028xtrain failed: x\n",
		"as we write it:\n  seen\n      next: oc": "as we write it:\n  seen\n      next: oc\n",
		"\x9b2J\x1b[2J\n one":                     "\ufffd2J\n  one\n",
	} {
		var out strings.Builder
		TextLog(&out).Info(message)
		if got := out.String(); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}
