// Command bench-train times ml-dev-env on the running local cluster, next to what users do without
// it: copying files to the nodes, reading logs, starting a training, and a whole pipeline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() { os.Exit(program()) }

// parts are the values of flag -parts, in the order in which they run.
var parts = []struct {
	name string
	run  func(context.Context, *place, int) error
}{
	{"sync", benchSync},
	{"logs", benchLogs},
	{"start", benchStart},
	{"pipeline", benchPipeline},
}

func program() int {
	var names []string
	for _, part := range parts {
		names = append(names, part.name)
	}
	chosen := flag.String("parts", strings.Join(names, ","), "what to time")
	runs := flag.Int("runs", 3, "how often each is timed; the median is printed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, strings.Split(*chosen, ","), *runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-train:", err)
		return 1
	}
	return 0
}

func bench(ctx context.Context, chosen []string, runs int) (err error) {
	wanted := map[string]bool{}
	for _, name := range chosen {
		wanted[name] = true
	}
	for _, part := range parts {
		delete(wanted, part.name)
	}
	if len(wanted) > 0 {
		return fmt.Errorf("-parts has %s: want some of sync, logs, start, pipeline", strings.Join(slices.Sorted(maps.Keys(wanted)), ", "))
	}
	if runs < 1 {
		return errors.New("-runs must be at least 1")
	}
	load, err := loadAverage()
	if err != nil {
		return err
	}
	p, err := newPlace()
	if err != nil {
		return err
	}
	// The cleanup also runs after an interruption.
	defer func() { err = errors.Join(err, p.remove(context.WithoutCancel(ctx))) }()
	if err := p.install(ctx); err != nil {
		return err
	}
	fmt.Printf("%d cores shared by two Kubernetes nodes, the control plane and this program; %s/%s, %s; the median of %d, and the range\n",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), runs)
	fmt.Printf("before the start, %.1f threads on average needed a core; unless that is close to 0, other programs disturbed the measurement\n", load)
	for _, part := range parts {
		if !slices.Contains(chosen, part.name) {
			continue
		}
		p.say("part %s", part.name)
		if err := part.run(ctx, p, runs); err != nil {
			return fmt.Errorf("timing %s: %w", part.name, err)
		}
	}
	return nil
}

// loadAverage returns the machine's load average of the last minute.
func loadAverage() (load float64, err error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return 0, fmt.Errorf("reading /proc/loadavg: %q: %w", text, err)
	}
	return load, nil
}
