// SPDX-License-Identifier: Apache-2.0

// Command mutants changes single lines of the chosen packages, and reports the changes that no test notices. A seed chooses the
// lines, not a person. It runs the tests of each change's package first. At the end it runs the tests of the packages that import it, for
// the changes that passed. The results are kept by commit and seed, so that a later call continues where an earlier one was stopped. It
// never writes to the tree: go test gets the changed file as an overlay.
//
// gremlins and go-mutesting, which the Go proxy serves, do not fit: neither draws a sample by a seed, continues a call that was
// stopped, or runs the tests of importing packages alone.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// packages are those whose mistakes cost GPUs, results or trust.
const packages = "internal/agent/treestore,internal/cause,internal/env/lease,internal/env/network,internal/kube," +
	"internal/steps/preflight,internal/steps/reaper,internal/steps/syncrepo,internal/steps/teardown,internal/steps/train"

// verdict is what became of a mutant.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "survived"
	invalid  verdict = "invalid"   // it does not compile, and does not count
	passed   verdict = "unnoticed" // the tests of its package pass; the tests of packages that import it have not run
)

type result struct {
	mutant
	Verdict verdict `json:"verdict"`
	Seconds float64 `json:"seconds"`
}

type options struct {
	seed     uint64
	count    int
	jobs     int
	packages string
	results  string
	list     bool
	timeout  time.Duration
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the lines")
	flag.IntVar(&o.count, "n", 60, "number of changes that compile")
	flag.BoolVar(&o.list, "list", false, "print the changes as JSON, and run no test; some do not compile")
	flag.IntVar(&o.jobs, "jobs", 2, "number of changes that are tried at once")
	flag.StringVar(&o.packages, "packages", packages, "folders of the packages, separated by commas")
	flag.StringVar(&o.results, "results", "bin", "folder of the results")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute,
		"how long the tests of a package may run; a change that makes them run longer counts as noticed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run fails if a mutant survives.
func run(ctx context.Context, o options, out io.Writer) error {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("asking git for the commit: %w", err)
	}
	if dirty, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", "*.go").Output(); err != nil || len(dirty) > 0 {
		return errors.Join(err, errors.New("want a tree without changes of Go files: the results are kept by commit"))
	}
	var all []mutant
	for folder := range strings.SplitSeq(o.packages, ",") {
		found, err := mutantsOf(folder)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	if o.list {
		for _, m := range shuffled(all, o.seed)[:min(o.count, len(all))] {
			err = errors.Join(err, json.NewEncoder(out).Encode(m))
		}
		return err
	}
	path := filepath.Join(o.results, fmt.Sprintf("mutants-%s-%d.jsonl", bytes.TrimSpace(commit), o.seed))
	known, err := readResults(path)
	if err != nil {
		return err
	}
	importers, err := importersOf(ctx)
	if err != nil {
		return err
	}
	t := trials{options: o, path: path, known: known, importers: importers, out: out}
	tried, err := t.run(ctx, shuffled(all, o.seed))
	if err != nil {
		return err
	}
	var survivors []result
	for _, r := range tried {
		if r.Verdict == survived {
			survivors = append(survivors, r)
		}
	}
	fmt.Fprintf(out, "seed %d: %d changes, %d survived; the results are %s\n", o.seed, len(tried), len(survivors), path)
	for _, r := range survivors {
		fmt.Fprintln(out, "survived:", r.mutant)
	}
	if len(survivors) > 0 {
		return fmt.Errorf("%d of %d changes survived: want a test for each, or its line gone", len(survivors), len(tried))
	}
	return nil
}

// trials are mutants that are tried, some at once: one that blocks its tests must not stop the others.
type trials struct {
	options
	path      string
	importers map[string][]string
	out       io.Writer

	mu    sync.Mutex
	known map[string]result
}

// run returns the results of the first mutants that compile.
func (t *trials) run(ctx context.Context, list []mutant) (tried []result, err error) {
	for len(tried) < t.count && len(list) > 0 {
		some := list[:min(t.count-len(tried), len(list))]
		list = list[len(some):]
		err := t.each(ctx, some, func(m mutant, overlay string) verdict {
			if r, ok := t.result(m); ok {
				return r.Verdict
			}
			return tryPackage(ctx, m, overlay, t.timeout)
		})
		if err != nil {
			return nil, err
		}
		for _, m := range some {
			if r := t.known[m.id()]; r.Verdict != invalid {
				tried = append(tried, r)
			}
		}
	}
	var open []mutant
	for _, r := range tried {
		if r.Verdict == passed {
			open = append(open, r.mutant)
		}
	}
	err = t.each(ctx, open, func(m mutant, overlay string) verdict {
		return tryImporters(ctx, t.importers[m.Package], overlay, t.timeout)
	})
	for i, r := range tried {
		tried[i] = t.known[r.id()]
	}
	return tried, err
}

// each tries mutants, and keeps the results.
func (t *trials) each(ctx context.Context, list []mutant, try func(m mutant, overlay string) verdict) error {
	var group errgroup.Group
	group.SetLimit(t.jobs)
	for _, m := range list {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			before, known := t.result(m)
			r, err := attempt(m, func(overlay string) verdict { return try(m, overlay) })
			if err != nil {
				return errors.Join(err, ctx.Err())
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			fmt.Fprintf(t.out, "%s: %s\n", r.Verdict, m)
			if known && r.Verdict == before.Verdict {
				return nil
			}
			t.known[m.id()] = r
			return writeResult(t.path, r)
		})
	}
	return group.Wait()
}

func (t *trials) result(m mutant) (result, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.known[m.id()]
	return r, ok
}

// attempt tries a mutant.
func attempt(m mutant, try func(overlay string) verdict) (r result, err error) {
	began := time.Now()
	r = result{mutant: m}
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return r, err
	}
	if r.Verdict = try(overlay); r.Verdict == "" {
		return r, errors.New("interrupted")
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// tryPackage runs the tests of the mutant's package. It returns no verdict if ctx ended meanwhile.
func tryPackage(ctx context.Context, m mutant, overlay string, timeout time.Duration) (v verdict) {
	own := "./" + m.Package
	switch {
	case !goes(ctx, "build", "-overlay="+overlay, own):
		v = invalid
	case !tests(ctx, overlay, timeout, own):
		v = killed
	default:
		return passed
	}
	if ctx.Err() != nil {
		return ""
	}
	return v
}

// tryImporters runs the tests of the packages that import the mutant's, a few at a time, until one fails. It returns no verdict if ctx
// ended meanwhile.
func tryImporters(ctx context.Context, importers []string, overlay string, timeout time.Duration) verdict {
	const atOnce = 4
	for some := range slices.Chunk(importers, atOnce) {
		if !tests(ctx, overlay, timeout, some...) {
			if ctx.Err() != nil {
				return ""
			}
			return killed
		}
	}
	return survived
}

func tests(ctx context.Context, overlay string, timeout time.Duration, names ...string) bool {
	return goes(ctx, slices.Concat([]string{"test", "-overlay=" + overlay, "-failfast", "-count=1", "-timeout=" + timeout.String()}, names)...)
}

func goes(ctx context.Context, args ...string) bool {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run() == nil
}

// overlay writes the changed file, and the JSON that names it to the go command.
func (m mutant) overlay(dir string) (string, error) {
	content, err := os.ReadFile(m.File)
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	names, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	return overlay, errors.Join(err, os.WriteFile(changed, m.apply(content), 0o600), os.WriteFile(overlay, names, 0o600))
}

// importersOf returns the packages that import each folder's package, also in tests.
func importersOf(ctx context.Context) (map[string][]string, error) {
	const format = `{{.ImportPath}} {{.Module.Path}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`
	out, err := exec.CommandContext(ctx, "go", "list", "-f", format, "./internal/...", "./cmd/...").Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	importers := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for _, imported := range words[2:] {
			folder, own := strings.CutPrefix(imported, words[1]+"/")
			if own && imported != words[0] && !slices.Contains(importers[folder], words[0]) {
				importers[folder] = append(importers[folder], words[0])
			}
		}
	}
	return importers, nil
}

func readResults(path string) (map[string]result, error) {
	known := map[string]result{}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return known, nil
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r result
		if json.Unmarshal(lines.Bytes(), &r) == nil { // the last line may be cut off
			known[r.id()] = r
		}
	}
	return known, nil
}

func writeResult(path string, r result) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}
