// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package bench times the local cluster, and ml-dev-env on it next to what users do without it: copying files to the
// nodes, reading logs, starting a training, and a whole pipeline. Each benchmark prints a table of its own:
//
//	go test -tags e2e -run='^$' -bench=Sync -benchtime=3x ./test/bench
package bench

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// TestMain uses the registry's credentials of the local cluster, also for the programs that benchmarks start.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if err := errors.Join(os.Chdir("../.."), os.Setenv("DOCKER_CONFIG", stateDir+"/docker"), report.Reproducible()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := removeNamespace(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		machine() // reads the load before the benchmarks use the cores
		return m.Run()
	}())
}

// machine describes the machine and its load at the start, which affect the measurements.
var machine = sync.OnceValue(func() []string {
	return report.Machine("two Kubernetes nodes, the control plane and this program")
})

// check ends the benchmark after an error.
func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
