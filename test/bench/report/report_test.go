// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

// The pages quote rows of the tables as the benchmarks wrote them.
func TestPagesQuoteTheTables(t *testing.T) {
	for _, name := range []string{"benchmarks", "scale"} {
		Page{Root: "../../..", Name: name}.Quote(t)
	}
}
