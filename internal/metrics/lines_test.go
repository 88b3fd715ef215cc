// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"testing"
)

func TestLoss(t *testing.T) {
	for line, want := range map[string]string{
		`{"loss":2.5}`: "2.5", `{"loss":NaN}`: "NaN", `{"loss": -Infinity}`: "-Inf", `{"loss":Infinity}`: "+Inf", `{"loss":"nan"}`: "NaN",
		`{"loss":"inf"}`: "+Inf", `{"loss":"2.5"}`: "none", `{"loss":null}`: "none", `{"loss":[NaN]}`: "none", `{"step":1}`: "none",
		`{"loss":"none"}`: "none",
	} {
		got := "none"
		if _, err := io.WriteString(Lines(func(value map[string]any) {
			if loss, ok := LossOf(value); ok {
				got = fmt.Sprint(loss)
			}
		}), line+"\n"); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}
