// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

type failure struct {
	Reason, Message string
	// Meaning and Remedy come from docs/reference/reasons.md.
	Meaning, Remedy string
	Cause           *evidence
	Tails           []evidence
	More            string
	Findings        []finding
	MoreFindings    string
}

type evidence struct {
	Title, Where, Text string
}

type finding struct {
	Title, Evidence, Cause, Fix string
}

// failureOf returns nil for a run that has not failed and has no findings.
func failureOf(r receipt.Receipt) *failure {
	findings := findingsOf(r)
	if r.Verdict != receipt.Failed && len(findings) == 0 {
		return nil
	}
	f := &failure{Reason: truncate(r.Reason, mostLine), Message: truncate(r.Message, mostText)}
	f.Findings, f.MoreFindings = atMost(findings, mostFindings, "findings")
	if r.Verdict != receipt.Failed {
		return f
	}
	f.Meaning, f.Remedy = explain(r.Reason)
	if c := r.Cause; c != nil {
		f.Cause = &evidence{Title: fmt.Sprintf("Rank %d on node %d %s", c.Rank, c.Node, truncate(c.HowFailed(), mostLine))}
		if p := c.Python; p != nil {
			f.Cause.Title += ": " + truncate(strings.TrimSuffix(p.Type+": "+p.Message, ": "), mostLine)
			if p.File != "" {
				f.Cause.Where = truncate(fmt.Sprintf("%s:%d", p.File, p.Line), mostLine)
			}
			f.Cause.Text = LastLines(p.Traceback)
		}
	}
	f.Tails, f.More = tails(r)
	return f
}

// tails returns the last lines of the failed ranks: first the rank that failed first, last those that were stopped.
func tails(r receipt.Receipt) ([]evidence, string) {
	ranks := slices.DeleteFunc(slices.Clone(r.Ranks), func(rank receipt.Rank) bool { return len(rank.Tail) == 0 })
	order := func(rank receipt.Rank) int {
		switch {
		case r.Cause != nil && r.Cause.Rank == rank.Rank:
			return 0
		case rank.Stopped || rank.Exit == agent.Exit{Code: -1}:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(ranks, func(a, b receipt.Rank) int { return order(a) - order(b) })
	ranks, more := atMost(ranks, mostTails, "ranks' last lines")
	var all []evidence
	for _, rank := range ranks {
		how := truncate(cause.Describe(rank.Exit), mostLine)
		if rank.Stopped {
			how = "was stopped"
		}
		all = append(all, evidence{Title: fmt.Sprintf("Rank %d on node %d %s; its last lines", rank.Rank, rank.Node, how),
			Text: LastLines(rank.Tail)})
	}
	return all, more
}

// findingsOf returns the findings of check-fabric and of the training, causes before consequences.
func findingsOf(r receipt.Receipt) (result []finding) {
	var all []nccl.Finding
	if r.Fabric != nil {
		all = append(all, r.Fabric.Findings...)
	}
	if r.Network != nil {
		all = append(all, r.Network.Findings...)
	}
	follows := func(f nccl.Finding) bool { return f.Consequence }
	causes := slices.DeleteFunc(slices.Clone(all), follows)
	consequences := slices.DeleteFunc(all, func(f nccl.Finding) bool { return !follows(f) })
	for _, f := range append(causes, consequences...) {
		title := string(f.Reason)
		for _, of := range []string{f.Host, f.Device, f.Peer} {
			if of != "" {
				title += ", " + of
			}
		}
		if f.Consequence {
			title += " (follows from another failure)"
		}
		next := finding{Title: truncate(title, mostLine), Evidence: truncate(f.Seen, mostText), Cause: truncate(f.Cause, mostText),
			Fix: truncate(f.Next, mostText)}
		if !slices.Contains(result, next) {
			result = append(result, next)
		}
	}
	return result
}

// explain returns the reason's row of docs/reference/reasons.md.
func explain(reason fail.Reason) (meaning, remedy string) {
	for row := range strings.Lines(mldevenv.Reasons) {
		cells := strings.Split(strings.TrimSpace(row), " | ")
		if len(cells) == 3 && cells[0] == "| "+string(reason) {
			return plain(cells[1]), plain(strings.TrimSuffix(cells[2], " |"))
		}
	}
	return "", ""
}

// plain returns Markdown without links and backquotes.
func plain(markdown string) string {
	return strings.ReplaceAll(link.ReplaceAllString(markdown, "$1"), "`", "")
}

var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
