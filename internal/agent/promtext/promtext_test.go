// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// What Prometheus' own parser reads is what was written, whatever the texts have in them.
func TestWrite(t *testing.T) {
	for _, text := range []string{"", "plain", "a\nb", `back\slash`, `"quoted"`, `\n`, "{}=,", "é", "not \xff UTF-8"} {
		for _, number := range []float64{0, -1.5, 1e300, math.NaN(), math.Inf(1), math.Inf(-1), 1 << 53} {
			m := Metric{Name: "mlenv_test", Type: Gauge, Help: strings.ToValidUTF8(text, "?")}
			m.Add(number, "first", text, "second", "x")
			m.Add(2)
			var out strings.Builder
			if err := Write(&out, []Metric{m, {Name: "mlenv_none", Type: Counter, Help: "has no samples"}}); err != nil {
				t.Fatal(err)
			}
			parser := expfmt.NewTextParser(model.LegacyValidation)
			families, err := parser.TextToMetricFamilies(strings.NewReader(out.String()))
			if err != nil || len(families) != 1 {
				t.Fatalf("%q: %d metrics, %v", out.String(), len(families), err)
			}
			family := families["mlenv_test"]
			first := family.GetMetric()[0]
			got, label := first.GetGauge().GetValue(), first.GetLabel()[0].GetValue()
			same := got == number || math.IsNaN(got) && math.IsNaN(number)
			if !same || label != strings.ToValidUTF8(text, "\uFFFD") || strings.TrimSpace(family.GetHelp()) != strings.TrimSpace(m.Help) {
				t.Errorf("%q: value %v, label %q, help %q; want %v, %q", out.String(), got, label, family.GetHelp(), number, text)
			}
		}
	}
}
