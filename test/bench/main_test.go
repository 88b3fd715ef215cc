//go:build e2e

// Package bench times the local cluster, and ml-dev-env on it next to what users do without it: copying files to the
// nodes, reading logs, starting a training, and a whole pipeline. Each benchmark prints a table of its own:
//
//	go test -tags e2e -run='^$' -bench=Sync -benchtime=3x ./test/bench
package bench

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// TestMain uses the registry's credentials of the local cluster, also for the programs that benchmarks start.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if err := errors.Join(os.Chdir("../.."), os.Setenv("DOCKER_CONFIG", stateDir+"/docker")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := removeNamespace(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		return m.Run()
	}())
}

// printMachine prints once what the measurements depend on.
var printMachine = sync.OnceFunc(func() {
	fmt.Printf("\n%d cores shared by two Kubernetes nodes, the control plane and this program; %s/%s, %s\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	var load float64
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if _, err := fmt.Sscan(string(text), &load); err == nil {
			fmt.Printf("before the start, %.1f threads on average needed a core; unless that is close to 0, other programs disturbed the measurement\n", load)
		}
	}
})

// check ends the benchmark after an error.
func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
