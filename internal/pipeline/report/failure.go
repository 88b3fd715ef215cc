package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// failure is why a run failed, with what shows it.
type failure struct {
	Reason, Message string
	// Meaning and Remedy are the reason's row in docs/reasons.md.
	Meaning, Remedy string
	Cause           *evidence
	Tails           []evidence
	More            string
	Findings        []finding
	MoreFindings    string
}

// evidence is text that a program printed.
type evidence struct {
	Title, Where, Text string
}

// finding is what logs show to be wrong.
type finding struct {
	Title, Evidence, Cause, Fix string
}

// failureOf is nil of a run that has not failed and of which nothing is found to be wrong.
func failureOf(r receipt.Receipt) *failure {
	findings := findingsOf(r)
	if r.Verdict != receipt.Failed && len(findings) == 0 {
		return nil
	}
	f := &failure{Reason: cut(r.Reason, mostLine), Message: cut(r.Message, mostText)}
	f.Findings, f.MoreFindings = first(findings, mostFindings, "findings")
	if r.Verdict != receipt.Failed {
		return f
	}
	f.Meaning, f.Remedy = explain(r.Reason)
	if c := r.Cause; c != nil {
		f.Cause = &evidence{Title: fmt.Sprintf("Rank %d on node %d %s", c.Rank, c.Node, cut(cause.Describe(c.Exit), mostLine))}
		if p := c.Python; p != nil {
			f.Cause.Title += ": " + cut(strings.TrimSuffix(p.Type+": "+p.Message, ": "), mostLine)
			if p.File != "" {
				f.Cause.Where = cut(fmt.Sprintf("%s:%d", p.File, p.Line), mostLine)
			}
			f.Cause.Text = lines(p.Traceback)
		}
	}
	f.Tails, f.More = tails(r)
	return f
}

// tails are the last lines of ranks that failed, the cause's first, those that were stopped last.
func tails(r receipt.Receipt) ([]evidence, string) {
	ranks := slices.DeleteFunc(slices.Clone(r.Ranks), func(rank receipt.Rank) bool { return len(rank.Tail) == 0 })
	place := func(rank receipt.Rank) int {
		switch {
		case r.Cause != nil && r.Cause.Rank == rank.Rank:
			return 0
		case rank.Stopped || rank.Exit == agent.Exit{Code: -1}:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(ranks, func(a, b receipt.Rank) int { return place(a) - place(b) })
	shown, more := first(ranks, mostTails, "ranks' last lines")
	var all []evidence
	for _, rank := range shown {
		how := cut(cause.Describe(rank.Exit), mostLine)
		if rank.Stopped {
			how = "was stopped"
		}
		all = append(all, evidence{Title: fmt.Sprintf("Rank %d on node %d %s; its last lines", rank.Rank, rank.Node, how), Text: lines(rank.Tail)})
	}
	return all, more
}

// findingsOf are those of the training's logs and of the check, causes before consequences.
func findingsOf(r receipt.Receipt) (result []finding) {
	var all []nccl.Finding
	if r.Fabric != nil {
		all = append(all, r.Fabric.Findings...)
	}
	if r.Network != nil {
		all = append(all, r.Network.Findings...)
	}
	slices.SortStableFunc(all, func(a, b nccl.Finding) int {
		return boolean(a.Consequence) - boolean(b.Consequence)
	})
	for _, f := range all {
		title := string(f.Reason)
		for _, of := range []string{f.Host, f.Device, f.Peer} {
			if of != "" {
				title += ", " + of
			}
		}
		if f.Consequence {
			title += " (follows from another failure)"
		}
		next := finding{Title: cut(title, mostLine), Evidence: cut(f.Seen, mostText), Cause: cut(f.Cause, mostText), Fix: cut(f.Next, mostText)}
		if !slices.Contains(result, next) {
			result = append(result, next)
		}
	}
	return result
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// explain finds the reason's row in the documentation, "" for a reason that is not in it.
func explain(reason string) (meaning, remedy string) {
	for row := range strings.Lines(mldevenv.Reasons) {
		cells := strings.Split(strings.TrimSpace(row), " | ")
		if len(cells) == 3 && cells[0] == "| "+reason {
			return plain(cells[1]), plain(strings.TrimSuffix(cells[2], " |"))
		}
	}
	return "", ""
}

// plain is Markdown without its marks.
func plain(markdown string) string {
	var b strings.Builder
	for markdown != "" {
		before, rest, found := strings.Cut(markdown, "[")
		b.WriteString(before)
		if !found {
			break
		}
		text, after, isLink := strings.Cut(rest, "](")
		_, end, closed := strings.Cut(after, ")")
		if !isLink || !closed {
			b.WriteString("[" + rest)
			break
		}
		b.WriteString(text)
		markdown = end
	}
	return strings.ReplaceAll(b.String(), "`", "")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
