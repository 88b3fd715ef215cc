package preflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Verdict is what a check comes to.
type Verdict string

// The verdicts.
const (
	// OK is as it should be.
	OK Verdict = "ok"
	// Warning keeps nobody from starting, now or in this mode.
	Warning Verdict = "warning"
	// BlockedRDMA leaves sockets alone.
	BlockedRDMA Verdict = "blocked-rdma"
	// Blocked means that no environment of this request can start.
	Blocked Verdict = "blocked"
	// Unknown is what may not be read, or was not answered in time.
	Unknown Verdict = "unknown"
)

// Check is one line of a report.
type Check struct {
	Name    string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	// Seen is the evidence.
	Seen string `json:"evidence"`
	// Fix is the command or the change that would mend it, "" where there is nothing to mend.
	Fix string `json:"fix,omitempty"`
	// Reason is there where the verdict is Blocked.
	Reason fail.Reason `json:"reason,omitempty"`
}

// Report is what a preflight found.
type Report struct {
	// Asked is the mode that was asked for: auto, rdma or tcp.
	Asked  string
	Checks []Check
	// request has the cluster file's defaults; free are the nodes that its pods can be on
	// at this moment; objects are what would be made, by mode.
	request objects.Request
	free    []string
	objects map[objects.Mode]objects.Objects
}

// Mode is how the nodes are to talk, and why: in mode auto RDMA unless some check
// is against it. It says nothing of what is blocked altogether, as Err does.
func (r Report) Mode() (objects.Mode, string) {
	against := r.of(BlockedRDMA)
	switch {
	case r.Asked == string(objects.TCP):
		return objects.TCP, "mode tcp is asked for"
	case r.Asked == string(objects.RDMA):
		return objects.RDMA, "mode rdma is asked for"
	case len(against) > 0:
		why := against[0].Name + ": " + against[0].Seen
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

// Err is why no environment can start, nil if one can. Its reason is that of the
// first check that is in the way; RDMAUnavailable where mode rdma is asked for and
// only sockets are possible.
func (r Report) Err() error {
	var all []error
	for _, check := range r.of(Blocked) {
		all = append(all, check.err(check.Reason))
	}
	if r.Asked == string(objects.RDMA) {
		for _, check := range r.of(BlockedRDMA) {
			all = append(all, check.err(fail.RDMAUnavailable))
		}
	}
	return errors.Join(all...)
}

func (c Check) err(reason fail.Reason) error {
	return fail.Finding{Reason: reason, Object: c.Name, Seen: c.Seen, Next: c.Fix}.Err("checking")
}

// Verdict is the whole report in a sentence: "rdma because ...", "tcp because
// ..." or "blocked because ...".
func (r Report) Verdict() string {
	if err := r.Err(); err != nil {
		return "blocked because of " + strings.ReplaceAll(strings.ReplaceAll(err.Error(), "checking ", ""), "\n", "; ")
	}
	mode, why := r.Mode()
	return fmt.Sprintf("%s because %s", mode, why)
}

func (r Report) of(verdict Verdict) []Check {
	var found []Check
	for _, check := range r.Checks {
		if check.Verdict == verdict {
			found = append(found, check)
		}
	}
	return found
}

// Print writes a table of the checks, with the fix below a check that wants one, and
// the verdict.
func (r Report) Print(w io.Writer) {
	names, verdicts := len("CHECK"), len("VERDICT")
	for _, check := range r.Checks {
		names, verdicts = max(names, len(check.Name)), max(verdicts, len(check.Verdict))
	}
	row := func(name, verdict, text string) {
		fmt.Fprintf(w, "%-*s  %-*s  %s\n", names, name, verdicts, verdict, text)
	}
	row("CHECK", "VERDICT", "EVIDENCE")
	for _, check := range r.Checks {
		row(check.Name, string(check.Verdict), check.Seen)
		for i, line := range strings.Split(check.Fix, "\n") {
			switch {
			case line == "":
			case i == 0:
				row("", "", "fix: "+line)
			default:
				row("", "", "     "+line)
			}
		}
	}
	fmt.Fprintf(w, "\nVerdict: %s.\n", r.Verdict())
}

// MarshalJSON is the report for machines, what follows from the checks included.
func (r Report) MarshalJSON() ([]byte, error) {
	mode, why := r.Mode()
	return json.Marshal(struct {
		Verdict string       `json:"verdict"`
		Asked   string       `json:"asked"`
		Mode    objects.Mode `json:"mode"`
		Why     string       `json:"why"`
		Blocked bool         `json:"blocked"`
		Checks  []Check      `json:"checks"`
	}{r.Verdict(), r.Asked, mode, why, r.Err() != nil, r.Checks})
}
