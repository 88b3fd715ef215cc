package tree

import (
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// shownProblems is how many problems are told one by one.
const shownProblems = 20

// problems are all that is wrong with a tree.
type problems []string

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, path+": "+fmt.Sprintf(format, args...))
}

// err is nil where there is no problem.
func (p problems) err(doing string) error {
	if len(p) == 0 {
		return nil
	}
	shown, rest := p, ""
	if len(p) > shownProblems {
		shown, rest = p[:shownProblems], fmt.Sprintf("\nand %d more", len(p)-shownProblems)
	}
	return fail.Becausef(fail.UnsafeTree, "%s: %d of its entries cannot be stored safely:\n%s%s", doing, len(p), strings.Join(shown, "\n"), rest)
}
