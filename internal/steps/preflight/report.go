// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Status is the result of a check.
type Status string

// The statuses.
const (
	// OK: nothing to fix.
	OK Status = "ok"
	// Warning: does not keep the environment from starting.
	Warning Status = "warning"
	// BlockedRDMA: only sockets are possible.
	BlockedRDMA Status = "blocked-rdma"
	// Blocked: no environment of this request can start.
	Blocked Status = "blocked"
	// Unknown: preflight may not read it, or got no answer in time.
	Unknown Status = "unknown"
)

// Check is one line of a report: a finding whose object is the check's name. Only a blocked check has a reason.
type Check struct {
	// Status is one of ok, warning, blocked-rdma, blocked and unknown.
	Status Status `json:"status"`
	fail.Finding
}

func newCheck(name string, status Status, next, format string, args ...any) Check {
	return Check{status, fail.Finding{Object: name, Seen: fmt.Sprintf(format, args...), Next: next}}
}

func (c Check) because(reason fail.Reason) Check {
	if c.Status == Blocked {
		c.Reason = reason
	}
	return c
}

// blockedBy returns the check that an error of the API server or of the request blocks.
func blockedBy(name string, err error) Check {
	f := fail.FindingOf(err)
	return newCheck(name, Blocked, f.Next, "%s", oneLine(f.Evidence())).because(f.Reason)
}

// Report is the result of a preflight.
type Report struct {
	// Asked is the requested mode: auto, rdma or tcp.
	Asked  agent.Mode
	Checks []Check
	// request has the cluster file's defaults; free are the nodes that have room for its pods
	// at this moment; objects are those that provision would create, by mode.
	request objects.Request
	free    []string
	objects map[agent.Mode]objects.Objects
}

// Mode returns the mode of the nodes and its reason: in mode auto RDMA, unless a check
// rules it out. It does not look at blocked checks, as Err does.
func (r Report) Mode() (agent.Mode, string) {
	against := r.withStatus(BlockedRDMA)
	switch {
	case r.Asked == agent.TCP:
		return agent.TCP, "mode tcp is asked for"
	case r.Asked == agent.RDMA:
		return agent.RDMA, "mode rdma is asked for"
	case len(against) > 0:
		why := against[0].Object + ": " + against[0].Seen
		if len(against) > 1 {
			why += fmt.Sprintf(" (and %d more)", len(against)-1)
		}
		return agent.TCP, why
	}
	why := "cluster file, permissions and hardware allow it"
	if unknown := r.withStatus(Unknown); len(unknown) > 0 {
		why += ", as far as is known (" + humanize.Count(len(unknown), "answer") + " unknown)"
	}
	return agent.RDMA, why
}

// blocking returns the checks that keep the environment from starting. Their reason is RDMAUnavailable if mode rdma is requested
// and only sockets are possible.
func (r Report) blocking() []Check {
	checks := r.withStatus(Blocked)
	if r.Asked == agent.RDMA {
		for _, check := range r.withStatus(BlockedRDMA) {
			check.Reason = fail.RDMAUnavailable
			checks = append(checks, check)
		}
	}
	return checks
}

// Err returns nil if an environment can start. The reason of the error comes from the first blocked check.
func (r Report) Err() error {
	var all []error
	for _, check := range r.blocking() {
		all = append(all, check.Err("checking"))
	}
	return errors.Join(all...)
}

// Verdict returns the report in a sentence: "rdma because ...", "tcp because ..." or "blocked because of ...".
func (r Report) Verdict() string {
	var blocking []string
	for _, check := range r.blocking() {
		blocking = append(blocking, check.Object+": "+check.Evidence())
	}
	if blocking != nil {
		return "blocked because of " + strings.Join(blocking, "; ")
	}
	mode, why := r.Mode()
	return fmt.Sprintf("%s because %s", mode, why)
}

func (r Report) withStatus(status Status) []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.Status != status })
}

// needsNoAttention reports whether the checks need no attention: nothing blocks the environment, or RDMA that the cluster file
// enables, and warnings are only about single nodes, of which there are enough.
func (r Report) needsNoAttention() bool {
	return r.Err() == nil && !slices.ContainsFunc(r.Checks, func(c Check) bool {
		switch c.Status {
		case BlockedRDMA:
			return c.Object != choiceCheck
		case Warning:
			return !strings.HasPrefix(c.Object, nodePrefix)
		}
		return false
	})
}

// oneLine returns a report without problems in one line.
func (r Report) oneLine() string {
	mode, _ := r.Mode()
	parts := []string{string(mode)}
	if len(r.free) > 0 {
		parts = append(parts, humanize.Count(len(r.free), "node")+" free")
	}
	parts = append(parts, humanize.Count(len(r.withStatus(OK)), "check")+" ok")
	if unknown := r.withStatus(Unknown); len(unknown) > 0 {
		const most = 4
		names := humanize.Each(unknown, func(c Check) string { return c.Object })
		parts = append(parts, fmt.Sprintf("%d unknown (%s)", len(unknown), humanize.First(names, most)))
	}
	if mode == agent.RDMA {
		parts = append(parts, "the rest in docs/project/unproven.md")
	}
	return "preflight: " + strings.Join(parts, ", ")
}

// Print writes a table of the checks, each with what to do next, the verdict, and where to read what no check can know.
func (r Report) Print(w io.Writer) {
	names, statuses := len("CHECK"), len("STATUS")
	for _, check := range r.Checks {
		names, statuses = max(names, len(check.Object)), max(statuses, len(check.Status))
	}
	row := func(name, status, text string) {
		fmt.Fprintf(w, "%-*s  %-*s  %s\n", names, name, statuses, status, text)
	}
	row("CHECK", "STATUS", "SEEN")
	for _, check := range r.Checks {
		row(check.Object, string(check.Status), check.Seen)
		prefix := "next: "
		for line := range strings.Lines(check.Next) {
			row("", "", prefix+strings.TrimSuffix(line, "\n"))
			prefix = "      "
		}
	}
	fmt.Fprintf(w, "\nVerdict: %s.\n", r.Verdict())
	if mode, _ := r.Mode(); mode == agent.RDMA || len(r.withStatus(Unknown)) > 0 {
		fmt.Fprintln(w, "docs/project/unproven.md lists what only the real cluster can prove, each with the command that proves it.")
	}
}
