// Command mutants changes single lines of the chosen packages, and reports the changes that no test notices. A seed chooses the
// lines, not a person. For each change it runs the tests of the package and of the packages that import it. The results are kept by commit
// and seed, so that a later call continues where an earlier one was stopped. It never writes to the tree: go test gets the changed file
// as an overlay.
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
	"syscall"
	"time"
)

// packages are those whose mistakes cost GPUs, results or trust.
const packages = "internal/agent/treestore,internal/diagnose/cause,internal/env/lease,internal/env/network,internal/kube," +
	"internal/steps/preflight,internal/steps/reaper,internal/steps/syncrepo,internal/steps/teardown,internal/steps/train"

// verdict is what became of a mutant.
type verdict string

// The verdicts.
const (
	killed   verdict = "killed"
	survived verdict = "survived"
	invalid  verdict = "invalid" // it does not compile, and does not count
)

type result struct {
	mutant
	Verdict verdict `json:"verdict"`
	Seconds float64 `json:"seconds"`
}

type options struct {
	seed     uint64
	count    int
	packages string
	results  string
	timeout  time.Duration
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the lines")
	flag.IntVar(&o.count, "n", 60, "number of changes that compile")
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
	path := filepath.Join(o.results, fmt.Sprintf("mutants-%s-%d.jsonl", bytes.TrimSpace(commit), o.seed))
	known, err := readResults(path)
	if err != nil {
		return err
	}
	importers, err := importersOf(ctx)
	if err != nil {
		return err
	}
	var survivors []result
	counted := 0
	for _, m := range shuffled(all, o.seed) {
		if counted == o.count {
			break
		}
		r, ok := known[m.id()]
		if !ok {
			if r, err = try(ctx, m, importers[m.Package], o.timeout); err != nil {
				return err
			}
			if err := writeResult(path, r); err != nil {
				return err
			}
		}
		if r.Verdict == invalid {
			continue
		}
		counted++
		fmt.Fprintf(out, "%d of %d: %s: %s\n", counted, o.count, r.Verdict, m)
		if r.Verdict == survived {
			survivors = append(survivors, r)
		}
	}
	fmt.Fprintf(out, "seed %d: %d changes, %d survived; the results are %s\n", o.seed, counted, len(survivors), path)
	for _, r := range survivors {
		fmt.Fprintln(out, "survived:", r.mutant)
	}
	if len(survivors) > 0 {
		return fmt.Errorf("%d of %d changes survived: want a test for each, or its line gone", len(survivors), counted)
	}
	return nil
}

// try runs the tests of the package, and if they pass those of the packages that import it.
func try(ctx context.Context, m mutant, importers []string, timeout time.Duration) (r result, err error) {
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
	goes := func(args ...string) bool {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		return cmd.Run() == nil
	}
	tests := func(names ...string) bool {
		return goes(slices.Concat([]string{"test", "-overlay=" + overlay, "-failfast", "-count=1", "-timeout=" + timeout.String()}, names)...)
	}
	own := "./" + m.Package
	switch {
	case !goes("build", "-overlay="+overlay, own):
		r.Verdict = invalid
	case !tests(own):
		r.Verdict = killed
	case len(importers) > 0 && !tests(importers...):
		r.Verdict = killed
	default:
		r.Verdict = survived
	}
	r.Seconds = time.Since(began).Seconds()
	return r, ctx.Err()
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
