package step

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// MultiCall runs the step whose name the program was called by, through a link,
// or that its first argument names.
func MultiCall(steps ...*cobra.Command) {
	called := filepath.Base(os.Args[0])
	for _, cmd := range steps {
		if cmd.Name() == called {
			Main(cmd)
		}
	}
	var names []string
	for _, cmd := range steps {
		if len(os.Args) > 1 && cmd.Name() == os.Args[1] {
			os.Args = os.Args[1:]
			Main(cmd)
		}
		names = append(names, cmd.Name())
	}
	fmt.Fprintf(os.Stderr, "usage: %s STEP [FLAG ...]\nThe steps: %s\n", called, strings.Join(names, ", "))
	os.Exit(WrongUsage)
}
