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
		"64.8%: starting 11s, steps 1h15m0s, repeated 5s": {Seconds: seconds, Share: 0.648, Measured: true},
		"64.8%: starting 11s, steps 1h15m0s, repeated 5s; 10 of 12 GPU-hours in useful steps": {Seconds: seconds, Share: 0.648,
			Measured: true,
			GPUHours: receipt.Spent{Steps: 10, Repeated: 2}},
		"not measured: starting 11s, ranks 1h15m0s, repeated 5s": {Seconds: seconds, Share: 0.648},
		"62.3%": {Seconds: receipt.Spent{Steps: 0.3}, Share: 0.623, Measured: true},
	} {
		if got := goodputText(g); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
