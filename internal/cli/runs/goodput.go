// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// goodputText returns the goodput of a run in one line, without the parts that there were not; "" for none.
func goodputText(g *receipt.Goodput) string {
	if g == nil || g.Seconds.Total() == 0 {
		return ""
	}
	steps, share := "steps", fmt.Sprintf("%.1f%%", 100*g.Share)
	if !g.Measured && g.Seconds.Steps+g.Seconds.Repeated > 0 {
		steps, share = "ranks", "not measured"
	}
	var parts []string
	for _, part := range []struct {
		name    string
		seconds float64
	}{
		{"waiting", g.Seconds.Waiting}, {"starting", g.Seconds.Starting}, {steps, g.Seconds.Steps}, {"repeated", g.Seconds.Repeated},
		{"hang", g.Seconds.Hang}, {"teardown", g.Seconds.Teardown},
	} {
		if part.seconds >= 0.5 {
			took := time.Duration(min(part.seconds, 1e9) * float64(time.Second))
			parts = append(parts, fmt.Sprintf("%s %s", part.name, took.Round(time.Second)))
		}
	}
	text := strings.TrimSuffix(share+": "+strings.Join(parts, ", "), ": ")
	if hours := g.GPUHours.Total(); hours > 0 && share != "not measured" {
		text += fmt.Sprintf("; %.4g of %.4g GPU-hours in useful steps", g.GPUHours.Steps, hours)
	}
	return text
}
