// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

func TestGoodputText(t *testing.T) {
	seconds := receipt.Spent{Waiting: 0.4, Starting: 11.2, Steps: 4500, Repeated: 5}
	for want, g := range map[string]*receipt.Goodput{
		"": nil,
		"64.8%: starting 11s, steps 1h15m0s, repeated 5s": {Seconds: seconds, Share: 0.648},
		"64.8%: starting 11s, steps 1h15m0s, repeated 5s; 10 of 12 GPU-hours in steps that lasted": {Seconds: seconds, Share: 0.648,
			GPUHours: receipt.Spent{Steps: 10, Repeated: 2}},
	} {
		if got := goodputText(g); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
