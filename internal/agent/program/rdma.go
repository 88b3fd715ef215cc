package program

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// printRDMA prints the RDMA devices of this container. With --check a fault is exit code 1.
func printRDMA(args, environ []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mlenv-agent rdma", flag.ContinueOnError)
	flags.SetOutput(stderr)
	sysRoot := flags.String("sys-root", rdma.SysRootOf(environ), "folder whose sys and dev/infiniband to read instead of those of / (default: $"+rdma.SysRootVariable+")")
	check := flags.Bool("check", false, "print one line, and exit with 1 where something is wrong")
	asJSON := flags.Bool("json", false, "print the facts as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *check && *asJSON {
		fmt.Fprintln(stderr, "mlenv-agent rdma: want --check, --json or neither, and no arguments")
		return 2
	}
	facts := rdma.Detect(rdma.Options{Root: rdma.Root(*sysRoot), SysRoot: *sysRoot, Environ: environ, Interfaces: rdma.SystemInterfaces})
	switch {
	case *check:
		line, fine := facts.Check()
		fmt.Fprintln(stdout, line)
		if !fine {
			return 1
		}
	case *asJSON:
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(facts); err != nil {
			fmt.Fprintln(stderr, "mlenv-agent:", err)
			return 1
		}
	default:
		facts.Print(stdout)
	}
	return 0
}
