// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write docs/reference/timeouts.md")

// grounded has the durations that are not guesses, FOLDER.NAME, and what says so. All others are.
var grounded = map[string]string{
	"agent/server.gpuTime":                     "less than Prometheus' scrape_timeout, 10 s",
	"agent/server.readProcess.tick":            "USER_HZ of Linux, 100",
	"agent/server.spyTime":                     "10 s were too few on two busy cores",
	"agent/server.stopTime":                    "torchrun's and DeepSpeed's own",
	"cli/action.cancelTime":                    "GitHub, cancelling a job",
	"cli/action.commitTime":                    "--request-timeout of the API server",
	"cli/action.lastTime":                      "GitHub: 7.5 s after SIGINT, 2.5 s after SIGTERM",
	"cli/dev.idleEvery":                        "the reaper's schedule",
	"cli/fetch.pageTime":                       "half of a Route's timeout, 30 s",
	"env/jobs.Grace":                           "with the time to show errors less than the 10 s that pages promise",
	"env/jobs.SavedSince.rounding":             "FAT keeps even seconds",
	"env/jobs.Settle":                          "with the time to end less than the 10 s that pages promise",
	"env/lease.RenewEvery":                     "a quarter of a Lease's duration",
	"humanize.Duration.day":                    "a unit",
	"pipeline/receipt.lastTime":                "terminationGracePeriodSeconds, 30 s",
	"run.defaultTimeout":                       "default-timeout-minutes of Tekton",
	"run.savingTime":                           "the default of stop-grace",
	"source/git.remote.long":                   "resolv.conf: twice 5 s; connect of Linux: 130 s",
	"steps/buildimage.podTime":                 "OpenShift cancels after 5 m",
	"steps/provision.answerTime":               "nvidia-smi without persistence mode: 20 s",
	"steps/provision.releaseTime":              "terminationGracePeriodSeconds, 30 s",
	"steps/provision.resizeFailures.tolerance": "times of events are whole seconds",
	"steps/provision.servicesTime":             "syncFrequency of the kubelet, 60 s, and its cache",
	"steps/reaper.podsTime":                    "terminationGracePeriodSeconds, 30 s",
	"steps/reaper.renewalTime":                 "two tries of a holder",
	"steps/teardown.lastTime":                  "terminationGracePeriodSeconds, 30 s",
	"steps/train.endTime":                      "terminationGracePeriodSeconds, 30 s",
}

// units are the durations of package time.
var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
	"Minute": time.Minute, "Hour": time.Hour,
}

// duration is a constant that is a time.
type duration struct {
	folder, name, why string
	expression        ast.Expr
	lasts             time.Duration
	at                token.Position
}

// TestTimeouts compares docs/reference/timeouts.md with the constants in the code that are times, their comments and values.
func TestTimeouts(t *testing.T) {
	all := durations(t)
	for name := range grounded {
		if !slices.ContainsFunc(all, func(d duration) bool { return d.folder+"."+d.name == name }) {
			t.Errorf("grounded has %s, and the code has no such duration", name)
		}
	}
	var page bytes.Buffer
	page.WriteString(timeoutsHead)
	for _, d := range all {
		basis := grounded[d.folder+"."+d.name]
		if basis == "" {
			basis = "guess"
		}
		if d.why == "" {
			t.Errorf("%s: %s.%s has no comment", d.at, d.folder, d.name)
		}
		why := strings.TrimPrefix(strings.TrimPrefix(d.why, d.name[strings.LastIndex(d.name, ".")+1:]+" "), "is ")
		if name := identifier.FindString(why); name != "" {
			t.Errorf("%s: the comment of %s names %s: readers of the page do not know the code", d.at, d.name, name)
		}
		why = strings.ToUpper(why[:min(1, len(why))]) + why[min(1, len(why)):]
		fmt.Fprintf(&page, "| %s | %s | %s | [%s](../../internal/%s) |\n", why, short(d.lasts), basis, d.folder, d.at.Filename)
	}
	const file = "../docs/reference/timeouts.md"
	if *update {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if current, err := os.ReadFile(file); err != nil || !bytes.Equal(current, page.Bytes()) {
		t.Errorf("%s is not current (%v): go test ./internal -run TestTimeouts -update", file, err)
	}
}

const timeoutsHead = `# Timeouts

<!-- Written by go test ./internal -run TestTimeouts -update. -->

Every time in the code that is not a param or a key of the cluster file, by its folder below ` + "`internal`" + `. Those that you can set
are in [the params of the tasks](tasks.md) and in [the cluster file](cluster-file.md). *Guess* marks times without a measurement or a
document behind them: change one if it does not fit your cluster, and tell us.

| what for | time | basis | where |
| --- | ---: | --- | --- |
`

// identifier matches names that only code has, such as askTime and lease.RetryEvery.
var identifier = regexp.MustCompile(`\b([a-z]+[A-Z]\w*|[a-z]+\.[A-Z]\w*|[A-Z][a-z]+(Time|Every|After|Grace))\b`)

// zeros matches the parts of a duration's text that are 0.
var zeros = regexp.MustCompile(`([hm])0s$`)

// short writes 2m instead of 2m0s, and 1h instead of 1h0m0s.
func short(d time.Duration) string {
	text := zeros.ReplaceAllString(d.String(), "$1")
	if hours, whole := strings.CutSuffix(text, "h0m"); whole {
		return hours + "h"
	}
	return text
}

// durations returns the constants of all packages that are times, in the order of their folders and names.
func durations(t *testing.T) (all []duration) {
	files := token.NewFileSet()
	constants := map[string]ast.Expr{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		folder := path.Dir(name)
		function := ""
		ast.Inspect(file, func(n ast.Node) bool {
			if of, ok := n.(*ast.FuncDecl); ok {
				function = of.Name.Name + "."
			}
			declaration, ok := n.(*ast.GenDecl)
			if !ok || declaration.Tok != token.CONST {
				return true
			}
			if slices.Contains(file.Decls, ast.Decl(declaration)) {
				function = ""
			}
			for _, spec := range declaration.Specs {
				values := spec.(*ast.ValueSpec)
				for i, value := range values.Values {
					d := duration{folder: folder, name: function + values.Names[i].Name, expression: value, at: files.Position(value.Pos())}
					texts := []*ast.CommentGroup{values.Doc, values.Comment}
					if len(declaration.Specs) == 1 {
						texts = append(texts, declaration.Doc)
					}
					for _, text := range texts {
						if d.why == "" {
							d.why = strings.Join(strings.Fields(text.Text()), " ")
						}
					}
					constants[folder+"."+values.Names[i].Name] = value
					all = append(all, d)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(d duration) bool { return !isTime(constants, d.folder, d.expression) })
	for i := range all {
		var ok bool
		if all[i].lasts, ok = eval(constants, all[i].folder, all[i].expression); !ok {
			var text bytes.Buffer
			_ = format.Node(&text, files, all[i].expression)
			t.Errorf("%s.%s: %s is not understood", all[i].folder, all[i].name, &text)
		}
	}
	slices.SortStableFunc(all, func(a, b duration) int { return strings.Compare(a.folder+"."+a.name, b.folder+"."+b.name) })
	return all
}

// isTime reports whether an expression names a unit of time, or a constant of the folder that does.
func isTime(constants map[string]ast.Expr, folder string, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return isTime(constants, folder, e.X)
	case *ast.BinaryExpr:
		return isTime(constants, folder, e.X) || isTime(constants, folder, e.Y)
	case *ast.Ident:
		value, ok := constants[folder+"."+e.Name]
		return ok && isTime(constants, folder, value)
	case *ast.SelectorExpr:
		of, _ := e.X.(*ast.Ident)
		return of != nil && of.Name == "time" && units[e.Sel.Name] != 0
	}
	return false
}

func eval(constants map[string]ast.Expr, folder string, e ast.Expr) (time.Duration, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 0, 64)
		return time.Duration(n), err == nil
	case *ast.ParenExpr:
		return eval(constants, folder, e.X)
	case *ast.Ident:
		value, ok := constants[folder+"."+e.Name]
		if !ok {
			return 0, false
		}
		return eval(constants, folder, value)
	case *ast.SelectorExpr:
		of, _ := e.X.(*ast.Ident)
		if of != nil && of.Name == "time" {
			return units[e.Sel.Name], true
		}
		for name, value := range constants {
			if of != nil && strings.HasSuffix("/"+name, "/"+of.Name+"."+e.Sel.Name) {
				return eval(constants, strings.TrimSuffix(name, "."+e.Sel.Name), value)
			}
		}
	case *ast.BinaryExpr:
		x, okX := eval(constants, folder, e.X)
		y, okY := eval(constants, folder, e.Y)
		switch {
		case !okX || !okY:
			return 0, false
		case e.Op == token.MUL:
			return x * y, true
		case e.Op == token.ADD:
			return x + y, true
		case e.Op == token.SUB:
			return x - y, true
		case e.Op == token.QUO && y != 0:
			return x / y, true
		}
	}
	return 0, false
}
