package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// askTime bounds the questions to the nodes.
const askTime = 10 * time.Second

type status struct {
	summary
	Message string     `json:"message,omitempty"`
	Commit  string     `json:"commit,omitempty"`
	Image   string     `json:"image,omitempty"`
	Mode    agent.Mode `json:"mode,omitempty"`
	// ModeReason is the reason for the mode.
	ModeReason string `json:"modeReason,omitempty"`
	// Caches is why Hugging Face's caches are on the nodes' own storage, "" if they are on the claim.
	Caches string `json:"caches,omitempty"`
	// Metrics are the last values that the training wrote.
	Metrics json.RawMessage `json:"metrics,omitempty"`
	Tasks   []receipt.Phase `json:"tasks,omitempty"`
	// Waits are what running tasks wait for: what keeps their pods from running, or else the last line of their logs.
	Waits []waiting `json:"waits,omitempty"`
	// Noted is how far a training in progress was when it last noted that, twice a minute; any user who may read ConfigMaps sees it.
	Noted *receipt.Progress `json:"noted,omitempty"`
	Live  []live            `json:"live,omitempty"`
	progress
	// Unseen is why the nodes of a training in progress did not answer.
	Unseen string `json:"unseen,omitempty"`
}

// waiting is what a task waits for.
type waiting struct {
	Task string `json:"task"`
	Text string `json:"text"`
	// Next is the command or the change that would show or fix it. It may be empty.
	Next string `json:"next,omitempty"`
}

// progress is that of a training with its attempts.
type progress struct {
	// Attempt is the newest one, from 1, of at most MaxAttempts. It is 0 if none has started.
	Attempt     int `json:"attempt,omitempty"`
	MaxAttempts int `json:"maxAttempts,omitempty"`
	// Silent is how long no rank has printed or measured anything, in seconds. It is 0 unless that is worth a look.
	Silent float64 `json:"silentSeconds,omitempty"`
	// Rank is the live rank that is silent longest, for RankSilent seconds; nil without one.
	Rank       *int    `json:"silentRank,omitempty"`
	RankSilent float64 `json:"rankSilentSeconds,omitempty"`
	// Step is the last one in the metrics, nil without.
	Step *float64 `json:"step,omitempty"`
}

// worthALook is after how much silence it is shown.
const worthALook = time.Minute

// progressOf is that of a job whose parts on its nodes have these statuses, zero for nodes without one.
func progressOf(jobs []agent.JobStatus, last json.RawMessage) (p progress) {
	quiet := time.Duration(-1)
	var longest time.Duration
	for _, job := range jobs {
		if job.State == agent.Running && (quiet < 0 || job.Quiet < quiet) {
			quiet = job.Quiet
		}
		if job.State != "" {
			p.Attempt = max(p.Attempt, job.Spec.Attempt())
		}
		for _, rank := range job.Ranks {
			if rank.Ended.IsZero() && (p.Rank == nil || rank.Quiet > longest) {
				p.Rank, longest = &rank.Rank, rank.Quiet
			}
		}
	}
	if quiet < worthALook {
		return progress{Attempt: p.Attempt}
	}
	p.Silent, p.RankSilent = quiet.Seconds(), longest.Seconds()
	var values map[string]any
	if json.Unmarshal(last, &values) == nil {
		if step, ok := metrics.Number(values, "step"); ok {
			p.Step = &step
		}
	}
	return p
}

// attempt is "2 of 4", "" for a training that is not restarted.
func (p progress) attempt() string {
	switch {
	case p.Attempt > 0 && p.MaxAttempts > 1:
		return fmt.Sprintf("%d of %d", p.Attempt, p.MaxAttempts)
	case p.Attempt > 1: // of a deleted run
		return strconv.Itoa(p.Attempt)
	}
	return ""
}

// silence is for example "all ranks for 4m0s, rank 3 for 4m7s, last in step 812", "" for none.
func (p progress) silence() string {
	if p.Silent == 0 {
		return ""
	}
	text := "all ranks for " + humanize.Seconds(p.Silent)
	if p.Rank != nil {
		text += fmt.Sprintf(", rank %d for %s", *p.Rank, humanize.Seconds(p.RankSilent))
	}
	if p.Step != nil {
		text += fmt.Sprintf(", last in step %.0f", *p.Step)
	}
	return text
}

type live struct {
	Node  int    `json:"node"`
	State string `json:"state"`
	// Ranks is the number of running ranks, of All.
	Ranks int `json:"ranks"`
	All   int `json:"all"`
	// Quiet is the time since the last output of any rank, in seconds.
	Quiet float64 `json:"quietSeconds"`
}

// StatusCommand is mlenv status.
func StatusCommand() *cobra.Command {
	var flags kube.Flags
	var output command.OutputFlag
	cmd := &cobra.Command{
		Use:   "status [RUN]",
		Short: "Show the state of a run: phases, nodes, metrics, and why it failed",
		Long: `Show the state of a run (default: the newest one). While the training is in progress mlenv asks the nodes, through the
API server.

Exit code 0: shown, whatever the state; 1: it cannot be read; 2: wrong usage, or no such run.`,
		Example: "  mlenv status\n  mlenv status train-multi-node-x7k2p --output=json",
		Args:    command.Arguments(0, 1, "one run or none"),
		RunE: onRun(&flags, func(cmd *cobra.Command, clients *kube.Clients, r entry, _ []string) error {
			s := r.status(cmd.Context(), clients)
			return output.PrintAs("RunStatus", cmd.OutOrStdout(), s, func(out io.Writer) error { return s.print(out, time.Now()) })
		}),
	}
	flags.AddTo(cmd.Flags())
	output.AddTo(cmd.Flags(), command.Text, command.JSON, command.YAML)
	return cmd
}

func (r entry) status(ctx context.Context, clients *kube.Clients) status {
	s := status{summary: r.summary(clients.Namespace)}
	known := r.known()
	s.Commit, s.Image, s.Mode, s.ModeReason, s.Caches = known.Commit, known.Image, known.Mode, known.ModeReason, known.Caches
	s.Tasks = r.phases()
	trains := func(t run.TaskRun) bool { return t.Task == trainTask && t.Status == run.Running && !t.Started.IsZero() }
	if slices.ContainsFunc(r.tasks, trains) || r.here != nil && s.State == running && r.attempt() > 0 {
		s.ask(ctx, clients, r)
	}
	if r.receipt != nil || s.State != cancelled { // of a cancelled run without a receipt Tekton only says that it was cancelled
		s.Message = r.standing().Message
	}
	if r.receipt != nil && len(s.Live) == 0 { // else the nodes know more
		s.Metrics, s.Attempt = r.receipt.Metrics, len(r.receipt.Attempts)
	}
	if (r.receipt == nil || r.open) && s.Attempt == 0 {
		s.Attempt = r.attempt()
	}
	s.MaxAttempts = r.maxAttempts()
	s.Waits = r.waits(ctx, clients)
	if r.memory != nil && r.memory.Receipt == nil {
		s.Noted = r.memory.Progress
	}
	return s
}

// phases are the tasks that Tekton lists, each as its step noted its end, or else what the receipt or the steps have of them.
func (r entry) phases() []receipt.Phase {
	if len(r.tasks) == 0 {
		return r.known().Phases
	}
	var phases []receipt.Phase
	for _, task := range r.noted().Tasks(r.tasks) {
		phases = append(phases, receipt.PhaseOf(task))
	}
	return phases
}

// waits asks what the running tasks wait for. A training shows its progress in another way. It reports only what it may read.
func (r entry) waits(ctx context.Context, clients *kube.Clients) (all []waiting) {
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
			_ = launch.Logs(ctx, clients, r.run, task, 1, func(e launch.Event) { last = e.Text })
		}
		if last != "" {
			all = append(all, waiting{Task: task.Task, Text: humanize.OneLine(humanize.PlainLine(last), maxWaiting)})
		}
	}
	return all
}

// agents connects to the nodes of a run in progress.
func (r entry) agents(ctx context.Context, clients *kube.Clients) (nodes.Set, error) {
	if r.here != nil {
		return r.here.Connect()
	}
	return env.Of(clients, r.environment()).Nodes(ctx, "")
}

func (s *status) ask(ctx context.Context, clients *kube.Clients, r entry) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	set, err := r.agents(ctx, clients)
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
		s.Live = append(s.Live, l)
	}
	s.Metrics = lastMetrics(ctx, set[0], r.uid())
	s.progress = progressOf(statuses, s.Metrics)
}

// lastMetrics are the last metrics on node 0, nil if the training has written none.
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

func (s *status) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := rowsOf(w)
	row("run", receipt.Receipt{Run: s.Name, Namespace: s.Namespace}.Title())
	row("state", s.State)
	row("reason", string(s.Reason))
	row("message", humanize.Lines(s.Message, maxMessage))
	row("environment", s.Environment)
	row("started", report.Stamp(s.Started))
	if d := s.duration(now); d > 0 {
		row("time", humanize.Duration(d))
	}
	if s.Nodes > 0 {
		row("nodes", fmt.Sprint(s.Nodes))
	}
	row("mode", modeText(s.Mode, s.ModeReason))
	row("caches", cachesText(s.Caches))
	row("commit", s.Commit)
	row("image", s.Image)
	row("metrics", metricsText(s.Metrics))
	row("progress", notedText(s.Noted, now))
	row("attempt", s.attempt())
	row("silent", s.silence())
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
		for _, same := range alike(s.Live, func(l live) string { return fmt.Sprint(l.State, l.Ranks, l.All) }) {
			l := slices.MaxFunc(same, func(a, b live) int { return cmp.Compare(a.Quiet, b.Quiet) })
			fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\n", rowName(l.Node, len(same), "node"), l.State, l.Ranks, l.All, humanize.Seconds(l.Quiet))
		}
	}
	if s.Unseen != "" {
		fmt.Fprintf(w, "\nThe nodes did not answer: %s\n", s.Unseen)
	}
	return w.Flush()
}

// maxWaiting bounds what a task waits for, in bytes.
const maxWaiting = 500

// notedText is for example "step 40 of 100, loss 2.104, 12345 tokens/s, about 3m0s left; 12s ago".
func notedText(p *receipt.Progress, now time.Time) string {
	if p == nil || p.At.IsZero() {
		return ""
	}
	text := fmt.Sprintf("step %.0f", p.Step)
	if p.Steps > 0 {
		text += fmt.Sprintf(" of %.0f", p.Steps)
	}
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

// maxMessage bounds a message and a traceback, in bytes.
const maxMessage = 2000

// mostRows is how many nodes or ranks a table lists one by one. In a longer table those that read the same share a row, with the
// longest of their times, unless they are few.
const mostRows = 16

// alike returns the members of each row, in the order of the first ones.
func alike[T any](all []T, key func(T) string) (rows [][]T) {
	members := map[string][]T{}
	for _, one := range all {
		members[key(one)] = append(members[key(one)], one)
	}
	const few = 4
	for _, one := range all {
		same, listed := members[key(one)]
		switch {
		case len(all) <= mostRows || listed && len(same) <= few:
			rows = append(rows, []T{one})
		case listed:
			rows = append(rows, same)
			delete(members, key(one))
		}
	}
	return rows
}

// rowName is the number of the only member of a row, or how many it has, for example "508 nodes".
func rowName(number, members int, what string) string {
	if members == 1 {
		return strconv.Itoa(number)
	}
	return humanize.Count(members, what)
}

// rowsOf returns a function that prints a name and a value, unless the value is empty. The lines of a value stay lines.
func rowsOf(w io.Writer) func(name, value string) {
	return func(name, value string) {
		for line := range strings.Lines(value) {
			fmt.Fprintf(w, "%s\t%s\n", name, strings.TrimSuffix(line, "\n"))
			name = ""
		}
	}
}

// printPhases prints the table of the tasks. The time of a running task ends now.
func printPhases(w io.Writer, phases []receipt.Phase, now time.Time) {
	if len(phases) > 0 {
		fmt.Fprintln(w, "\nPHASE\tSTATUS\tTIME\tREASON")
	}
	for _, p := range phases {
		took := "-"
		switch {
		case !p.Ended.IsZero():
			took = humanize.Duration(p.Ended.Sub(p.Started))
		case !p.Started.IsZero() && p.Status == run.Running:
			took = humanize.Duration(now.Sub(p.Started))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, p.Status, took, p.Reason)
	}
}
