package trend

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// AddTolerances adds a flag for each measure.
func AddTolerances(flags *pflag.FlagSet) Tolerance {
	t := DefaultTolerance()
	for _, m := range Measures() {
		flags.Func(strings.ReplaceAll(string(m), " ", "-")+"-tolerance", fmt.Sprintf("by how many `percent` the %s may be worse than the median of the last ten runs (default: %s)", m, t[m]),
			func(text string) (err error) {
				t[m], err = ParsePercent(text)
				return err
			})
	}
	return t
}
