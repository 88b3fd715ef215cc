package preflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	// OK: nothing to fix.
	OK Verdict = "ok"
	// Warning: does not keep the environment from starting.
	Warning Verdict = "warning"
	// BlockedRDMA: only sockets are possible.
	BlockedRDMA Verdict = "blocked-rdma"
	// Blocked: no environment of this request can start.
	Blocked Verdict = "blocked"
	// Unknown: preflight may not read it, or got no answer in time.
	Unknown Verdict = "unknown"
)

// Check is one line of a report: a finding whose object is the check's name. Only a blocked check has a reason.
type Check struct {
	Verdict Verdict
	fail.Finding
}

func newCheck(name string, verdict Verdict, next, format string, args ...any) Check {
	return Check{verdict, fail.Finding{Object: name, Seen: fmt.Sprintf(format, args...), Next: next}}
}

func (c Check) because(reason fail.Reason) Check {
	if c.Verdict == Blocked {
		c.Reason = reason
	}
	return c
}

// blockedBy is the check that an error of the API server or of the request blocks. Err puts "checking NAME" before it again.
func blockedBy(name string, err error) Check {
	text := oneLine(err.Error())
	if object, seen, found := strings.Cut(text, ": "); found && strings.HasPrefix(object, "checking the "+name) {
		text = seen
	}
	return newCheck(name, Blocked, fail.NextOf(err), "%s", text).because(fail.ReasonOf(err))
}

// Report is the result of a preflight.
type Report struct {
	// Asked is the requested mode: auto, rdma or tcp.
	Asked  string
	Checks []Check
	// request has the cluster file's defaults; free are the nodes that have room for its pods
	// at this moment; objects are those that provision would create, by mode.
	request objects.Request
	free    []string
	objects map[objects.Mode]objects.Objects
}

// Mode is the mode of the nodes and its reason: in mode auto RDMA, unless a check
// rules it out. It does not look at blocked checks, as Err does.
func (r Report) Mode() (objects.Mode, string) {
	against := r.of(BlockedRDMA)
	switch {
	case r.Asked == string(objects.TCP):
		return objects.TCP, "mode tcp is asked for"
	case r.Asked == string(objects.RDMA):
		return objects.RDMA, "mode rdma is asked for"
	case len(against) > 0:
		why := against[0].Object + ": " + against[0].Seen
		if len(against) > 1 {
			why += fmt.Sprintf(" (and %d more)", len(against)-1)
		}
		return objects.TCP, why
	}
	why := "cluster file, permissions and hardware allow it"
	if unknown := r.of(Unknown); len(unknown) > 0 {
		why += ", as far as is known (" + humanize.Count(len(unknown), "answer") + " unknown)"
	}
	return objects.RDMA, why
}

// Err is nil if an environment can start. Its reason is that of the first blocked check; RDMAUnavailable if mode rdma
// is requested and only sockets are possible.
func (r Report) Err() error {
	checks := r.of(Blocked)
	if r.Asked == string(objects.RDMA) {
		for _, check := range r.of(BlockedRDMA) {
			check.Reason = fail.RDMAUnavailable
			checks = append(checks, check)
		}
	}
	var all []error
	for _, check := range checks {
		all = append(all, check.Err("checking"))
	}
	return errors.Join(all...)
}

// Verdict is the report in a sentence: "rdma because ...", "tcp because ..." or "blocked because of ...".
func (r Report) Verdict() string {
	if err := r.Err(); err != nil {
		return "blocked because of " + strings.ReplaceAll(strings.ReplaceAll(err.Error(), "checking ", ""), "\n", "; ")
	}
	mode, why := r.Mode()
	return fmt.Sprintf("%s because %s", mode, why)
}

func (r Report) of(verdict Verdict) []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.Verdict != verdict })
}

// fine reports whether the checks need no attention: nothing blocks the environment, or RDMA that the cluster file
// enables, and warnings are only about single nodes, of which there are enough.
func (r Report) fine() bool {
	return r.Err() == nil && !slices.ContainsFunc(r.Checks, func(c Check) bool {
		switch c.Verdict {
		case BlockedRDMA:
			return c.Object != choiceCheck
		case Warning:
			return !strings.HasPrefix(c.Object, nodePrefix)
		}
		return false
	})
}

// brief is a report without problems in one line.
func (r Report) brief() string {
	mode, _ := r.Mode()
	parts := []string{string(mode)}
	if len(r.free) > 0 {
		parts = append(parts, humanize.Count(len(r.free), "node")+" free")
	}
	parts = append(parts, humanize.Count(len(r.of(OK)), "check")+" ok")
	if unknown := len(r.of(Unknown)); unknown > 0 {
		parts = append(parts, fmt.Sprintf("%d unknown", unknown))
	}
	if mode == objects.RDMA {
		parts = append(parts, "the rest in docs/unproven.md")
	}
	return "preflight: " + strings.Join(parts, ", ")
}

// Print writes a table of the checks, each with its fix, the verdict, and where to read what no check can know.
func (r Report) Print(w io.Writer) {
	names, verdicts := len("CHECK"), len("VERDICT")
	for _, check := range r.Checks {
		names, verdicts = max(names, len(check.Object)), max(verdicts, len(check.Verdict))
	}
	row := func(name, verdict, text string) {
		fmt.Fprintf(w, "%-*s  %-*s  %s\n", names, name, verdicts, verdict, text)
	}
	row("CHECK", "VERDICT", "EVIDENCE")
	for _, check := range r.Checks {
		row(check.Object, string(check.Verdict), check.Seen)
		prefix := "fix: "
		for line := range strings.Lines(check.Next) {
			row("", "", prefix+strings.TrimSuffix(line, "\n"))
			prefix = "     "
		}
	}
	fmt.Fprintf(w, "\nVerdict: %s.\n", r.Verdict())
	if mode, _ := r.Mode(); mode == objects.RDMA || len(r.of(Unknown)) > 0 {
		fmt.Fprintln(w, "docs/unproven.md lists what only the real cluster can prove, each with the command that proves it.")
	}
}

// MarshalJSON is the report for machines, with its verdict and mode.
func (r Report) MarshalJSON() ([]byte, error) {
	type row struct {
		Name    string      `json:"check"`
		Verdict Verdict     `json:"verdict"`
		Seen    string      `json:"evidence"`
		Next    string      `json:"fix,omitempty"`
		Reason  fail.Reason `json:"reason,omitempty"`
	}
	rows := make([]row, len(r.Checks))
	for i, c := range r.Checks {
		rows[i] = row{c.Object, c.Verdict, c.Seen, c.Next, c.Reason}
	}
	mode, why := r.Mode()
	return json.Marshal(struct {
		Verdict string       `json:"verdict"`
		Asked   string       `json:"asked"`
		Mode    objects.Mode `json:"mode"`
		Why     string       `json:"why"`
		Blocked bool         `json:"blocked"`
		Checks  []row        `json:"checks"`
	}{r.Verdict(), r.Asked, mode, why, r.Err() != nil, rows})
}
