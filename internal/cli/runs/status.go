// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

type runStatus struct {
	summary
	// Message is what went wrong, in words.
	Message string `json:"message,omitempty"`
	// Commit is the commit that was synced.
	Commit string `json:"commit,omitempty"`
	// Image is the training image, by digest if it is known.
	Image string `json:"image,omitempty"`
	// Mode is the transport: rdma or tcp.
	Mode agent.Mode `json:"mode,omitempty"`
	// ModeReason is the reason for the mode.
	ModeReason string `json:"modeReason,omitempty"`
	// Metrics are the last values that the training wrote.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	// Tasks are the run's tasks.
	Tasks []receipt.Phase `json:"tasks,omitempty"`
	// Waits are what running tasks wait for: what keeps their pods from running, or else the last line of their logs.
	Waits []waiting `json:"waits,omitempty"`
	// Noted is how far a training in progress was when it last noted that, twice a minute; any user who may read ConfigMaps sees it.
	Noted *receipt.Progress `json:"noted,omitempty"`
	// Live is how the training stands on each node, as the agents report it.
	Live []live `json:"live,omitempty"`
	// Saving are the ranks of a training that is being stopped and that still save, with the time that they have.
	Saving string `json:"saving,omitempty"`
	progress
	// Unseen is why the nodes of a training in progress did not answer.
	Unseen string `json:"unseen,omitempty"`
}

// StatusCommand returns the command mlenv status.
func StatusCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "status [RUN]",
		Short: "Show the state of a run: phases, nodes, metrics, and why it failed",
		Long: `Show the state of a run (default: one in progress, or else the newest). While the training is in progress mlenv asks
the nodes, through the API server.

Exit code 0: shown, whatever the state; 1: it cannot be read; 2: wrong usage, or no such run.`,
		Example: "  mlenv status\n  mlenv status train-multi-node-x7k2p --output=json",
		Args:    command.Arguments(0, 1, "one run or none"),
		RunE: onRun(&flags, func(cmd *cobra.Command, clients *kube.Clients, r runInfo, _ []string) error {
			s := r.status(cmd.Context(), clients)
			return output.PrintAs("RunStatus", cmd.OutOrStdout(), s, func(out io.Writer) error { return s.print(out, time.Now()) })
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	return cmd
}

// PrintStatus prints the status of a run of the cluster as mlenv status does. Errors: as of the command.
func PrintStatus(ctx context.Context, clients *kube.Clients, name string, out io.Writer) error {
	r, err := findRun(ctx, clients, name)
	if err != nil {
		return err
	}
	s := r.status(ctx, clients)
	return s.print(out, time.Now())
}

func (r runInfo) status(ctx context.Context, clients *kube.Clients) runStatus {
	s := runStatus{summary: r.summary()}
	known := r.receiptSoFar()
	s.Commit, s.Image, s.Mode, s.ModeReason = known.Commit, known.Image, known.Mode, known.ModeReason
	s.Tasks = r.phases()
	switch runs := r.standing().Running; {
	case slices.Contains(runs, trainTask):
		s.ask(ctx, r)
	case slices.Contains(runs, "teardown"): // ranks may still save, or the nodes are gone
		s.ask(ctx, r)
		s.Unseen = ""
	}
	if r.receipt != nil || s.State != cancelled { // of a cancelled run without a receipt Tekton only says that it was cancelled
		s.Message = r.standing().Message
	}
	if r.receipt != nil && len(s.Live) == 0 { // else the nodes know more
		s.Metrics, s.Attempt = r.receipt.Metrics, len(r.receipt.Attempts)
	}
	if (r.receipt == nil || r.unfinished) && s.Attempt == 0 {
		s.Attempt = r.attempt()
	}
	s.MaxAttempts = r.maxAttempts()
	s.Waits = r.waits(ctx, clients)
	if r.journal != nil && r.journal.Receipt == nil {
		s.Noted = r.journal.Progress
	}
	return s
}

// phases returns the tasks that Tekton lists, each as its step noted its end, or else what the receipt or the steps have of them.
func (r runInfo) phases() []receipt.Phase {
	if len(r.tasks) == 0 {
		return r.receiptSoFar().Phases
	}
	var phases []receipt.Phase
	for _, task := range r.savedJournal().Tasks(r.tasks) {
		phases = append(phases, receipt.PhaseOf(task))
	}
	return phases
}

// waits asks what the running tasks wait for. A training shows its progress in another way. It reports only what it may read.
func (r runInfo) waits(ctx context.Context, clients *kube.Clients) (all []waiting) {
	if r.run == nil || r.run.IsDone() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	stuck, _ := launch.Waiting(ctx, clients, r.run) // what cannot be read is left out
	for _, task := range r.tasks {
		if task.Status != run.Running {
			continue
		}
		if event, ok := stuck[task.Task]; ok {
			all = append(all, waiting{Task: task.Task, Text: humanize.OneLine(event.Text, maxWaiting), Next: event.Next})
			continue
		}
		last := ""
		if task.Task != trainTask {
			_ = launch.ReadTaskLog(ctx, clients, r.run, task, 1, func(e launch.Event) { last = e.Text })
		}
		if last != "" {
			all = append(all, waiting{Task: task.Task, Text: humanize.OneLine(humanize.PlainLine(last), maxWaiting)})
		}
	}
	return all
}

func (s *runStatus) ask(ctx context.Context, r runInfo) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	set, err := r.at.nodes(ctx, r)
	if err != nil {
		s.Unseen = err.Error()
		return
	}
	defer set.Close()
	statuses, err := jobs.Job{ID: r.uid(), Members: set}.Statuses(ctx)
	if err != nil {
		s.Unseen = err.Error()
		return
	}
	for node, job := range statuses {
		l := live{Node: node, State: cmp.Or(string(job.State), "no job yet"), All: len(job.Ranks), Quiet: job.Quiet.Seconds()}
		for _, rank := range job.Ranks {
			if rank.Ended.IsZero() {
				l.Ranks++
			}
		}
		if job.State == agent.Running && !job.Stopping.IsZero() {
			l.Stopping, l.SecondsLeft = cmp.Or(job.StopReason, "it was stopped"), max(0, time.Until(job.Kill)).Seconds()
		}
		s.Live = append(s.Live, l)
	}
	s.Saving = agent.Saving(statuses, time.Now())
	s.Metrics = lastMetrics(ctx, set[0], r.uid())
	s.progress = progressOf(statuses, s.Metrics)
}

// lastMetrics returns the last metrics on node 0, nil if the training has written none.
func lastMetrics(ctx context.Context, client *agent.Client, job string) json.RawMessage {
	const most = 64 << 10
	log, err := client.LogEnd(ctx, job, agent.MetricsLog, most)
	if err != nil {
		return nil
	}
	defer log.Close()
	var last map[string]any
	if _, err := io.Copy(metrics.Lines(func(line map[string]any) { last = metrics.Bounded(line) }), log); err != nil || last == nil {
		return nil
	}
	text, _ := json.Marshal(last) // it was read as JSON
	return text
}

func (s *runStatus) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := rowsOf(w)
	row("run", receipt.Receipt{Run: s.Name, Namespace: s.Namespace}.DisplayName())
	row("state", s.State)
	row("reason", string(s.Reason))
	row("warning", s.Warning)
	row("message", humanize.Lines(s.Message, maxMessage))
	row("environment", s.Environment)
	row("started", report.FormatTime(s.Started))
	if d := s.duration(now); d > 0 {
		row("time", humanize.Duration(d))
	}
	if s.Nodes > 0 {
		row("nodes", fmt.Sprint(s.Nodes))
	}
	row("mode", modeText(s.Mode, s.ModeReason))
	row("commit", s.Commit)
	row("image", s.Image)
	row("metrics", metricsText(s.Metrics))
	row("progress", notedText(s.Noted, now))
	if s.Noted != nil && s.Noted.NotFinite != nil {
		row("warning", fmt.Sprintf("the loss was NaN or infinite, first at step %.0f", *s.Noted.NotFinite))
	}
	row("attempt", s.attempt())
	row("silent", s.silence())
	row("saving", s.Saving)
	printPhases(w, s.Tasks, now)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, waits := range s.Waits {
		fmt.Fprintf(out, "\n%s: %s\n", waits.Task, waits.Text)
		if waits.Next != "" {
			fmt.Fprintf(out, "  next: %s\n", waits.Next)
		}
	}
	if len(s.Live) > 0 && s.Unseen == "" {
		fmt.Fprintln(w, "\nNODE\tJOB\tRANKS\tQUIET FOR")
		for _, same := range groupRows(s.Live, func(l live) string { return fmt.Sprint(l.State, l.Ranks, l.All) }) {
			l := slices.MaxFunc(same, func(a, b live) int { return cmp.Compare(a.Quiet, b.Quiet) })
			fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", rowName(l.Node, len(same), "node"), l.State, l.Ranks, l.All, humanize.Seconds(l.Quiet))
		}
	}
	if s.Unseen != "" {
		fmt.Fprintf(w, "\nThe nodes did not answer: %s\n", s.Unseen)
	}
	return w.Flush()
}

// notedText returns for example "step 40 of 100, loss 2.104, 12345 tokens/s, about 3m0s left; 12s ago".
func notedText(p *receipt.Progress, now time.Time) string {
	if p == nil || p.At.IsZero() {
		return ""
	}
	text := metrics.AtStep(p.Step, p.Steps, p.Source)
	if p.Loss != nil {
		text += fmt.Sprintf(", loss %.4g", *p.Loss)
	}
	switch {
	case p.TokensPerSecond > 0:
		text += fmt.Sprintf(", %.4g tokens/s", p.TokensPerSecond)
	case p.SamplesPerSecond > 0:
		text += fmt.Sprintf(", %.4g samples/s", p.SamplesPerSecond)
	}
	if p.SecondsLeft > 0 {
		text += ", about " + humanize.Seconds(p.SecondsLeft) + " left"
	}
	return text + "; " + humanize.Duration(max(0, now.Sub(p.At)).Truncate(time.Second)) + " ago"
}

// maxWaiting bounds what a task waits for, in bytes.
const maxWaiting = 500
