// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
)

// TopCommand returns the command mlenv top.
func TopCommand() *cobra.Command {
	env := envflags.Flags{Reads: true, Runs: true}
	var output command.OutputFlag
	var once bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top [RUN|ENVIRONMENT]",
		Short: "Show GPU use, memory and training speed of each node, live",
		Long: `Show the use of the GPUs and the memory of each node of a run or an environment, and the step, loss and speed of its training, as
nvidia-smi and the metrics of the training report them. On a terminal mlenv updates the table until Ctrl-C; elsewhere, and
with --once or --output=json, it prints it once. Without an argument it shows the newest
local run in progress, or else the environment that you hold, or else ml-dev-env, or else the only environment of the namespace.

OWN STEP is the time that the slowest rank of the node took for its own part of the last step, if the training reports it.

Exit code 0: shown; 1: there is no such environment, or no node answers; 2: wrong usage.`,
		Example: `  mlenv top
  mlenv top train-multi-node-x7k2p --once
  mlenv top h-kim --output=json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(envflags.ParseName(cmd.Flags(), args), command.Want(every >= time.Second, "--every %s: want at least 1s", every))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := openSource(cmd, &env)
			if err != nil {
				return err
			}
			defer s.nodes.Close()
			if terminal := command.RawTerminal(cmd.OutOrStdout()); terminal != nil && !once && output.ForPeople() {
				return s.showLive(cmd.Context(), terminal, every)
			}
			report, err := s.askNodes(cmd.Context())
			if err != nil {
				return err
			}
			return output.PrintAs("Top", cmd.OutOrStdout(), report, report.print)
		},
	}
	flags := cmd.Flags()
	env.AddTo(flags, envflags.OnlyNamespace)
	output.AddTo(flags, command.Text, command.JSON, command.YAML)
	flags.BoolVar(&once, "once", false, "print the table once")
	flags.DurationVar(&every, "every", 2*time.Second, "time between two updates")
	return cmd
}

// showLive shows the table on a terminal until ctx ends or the environment is gone.
func (s *source) showLive(ctx context.Context, terminal *command.Terminal, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	size := func() (width, height int) {
		width, height = terminal.Size()
		return cmp.Or(width, 80), cmp.Or(height, 24)
	}
	return redraw(ctx, terminal, size, ticker.C, func() (State, error) { return s.current(ctx) })
}

// redraw shows a new table at every tick, until ctx ends or ask fails.
func redraw(ctx context.Context, out io.Writer, size func() (width, height int), ticks <-chan time.Time, ask func() (State, error)) error {
	fmt.Fprint(out, "\x1b[2J")
	for {
		report, err := ask()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Ctrl-C ends the table
		}
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := report.print(&text); err != nil {
			return err
		}
		width, height := size()
		if _, err := io.WriteString(out, screen(humanize.Plain(text.String()), width, height)); err != nil {
			return err
		}
		select {
		case <-ticks:
		case <-ctx.Done():
			return nil
		}
	}
}

// screen returns the text for a terminal whose last text it replaces. It cuts lines that would wrap, or scroll away the first.
func screen(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var out strings.Builder
	out.WriteString("\x1b[H")
	for _, line := range lines[:min(len(lines), height-1)] {
		runes := []rune(line)
		out.WriteString(string(runes[:min(len(runes), width)]) + "\x1b[K\r\n")
	}
	out.WriteString("\x1b[J")
	return out.String()
}

func (r State) print(out io.Writer) error {
	for _, job := range r.Jobs {
		fmt.Fprintln(out, job)
		if job.Dropped != "" {
			fmt.Fprintln(out, humanize.OneLine(job.Dropped, 300))
		}
	}
	if len(r.Jobs) == 0 {
		fmt.Fprintf(out, "No training runs on environment %s.\n", r.Environment)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(columns(), "\t")))
	for _, n := range r.Nodes {
		fmt.Fprintf(w, "%d\t%s\n", n.Node, strings.Join(n.columns(), "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.Nodes {
		for _, problem := range n.Problems() {
			fmt.Fprintf(out, "node %d: %s\n", n.Node, humanize.OneLine(problem, 300))
		}
	}
	return nil
}

func columns() []string {
	return []string{"Node", "On", "GPUs busy", "GPU memory", "Hottest", "Memory", "Ranks", "Silent for", "Own step"}
}

// String returns the progress of the job on one line.
func (j Job) String() string {
	if j.Step == 0 {
		return humanize.OneLine(j.Run, 100) + ": no metrics yet"
	}
	parts := []string{humanize.OneLine(j.Run, 100) + ": " + metrics.AtStep(j.Step, j.Steps, j.Source)}
	switch loss := j.Loss.(type) {
	case float64:
		parts = append(parts, fmt.Sprintf("loss %.4g", loss))
	case string:
		parts = append(parts, "loss "+humanize.OneLine(loss, 20))
	}
	if j.StepsPerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%.3g steps/s", j.StepsPerSecond))
	}
	if j.PerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%.0f %s/s", j.PerSecond, j.Rate))
	}
	if j.SecondsLeft > 0 {
		parts = append(parts, "about "+humanize.Seconds(j.SecondsLeft)+" left")
	}
	return strings.Join(parts, ", ")
}

// columns returns the values of columns after the node's number; "-" is not known.
func (n Node) columns() []string {
	columns := []string{humanize.OneLine(n.KubernetesNode, 100), "-", "-", "-", "-", "-", "-", "-"}
	if n.KubernetesNode == "" {
		columns[0] = "-"
		return columns
	}
	var busy []string
	var used, size agent.Bytes
	hottest := 0
	for _, gpu := range n.GPUs {
		busy = append(busy, fmt.Sprintf("%d%%", gpu.Utilization))
		used, size, hottest = used+gpu.MemoryUsed, size+gpu.Memory, max(hottest, gpu.Temperature)
	}
	if len(n.GPUs) > 0 {
		columns[1], columns[3] = strings.Join(busy, " "), fmt.Sprintf("%d °C", hottest)
		if size > 0 { // else the GPUs share the host's memory, as GB10 does
			columns[2] = share(used, size)
		}
	}
	columns[4] = share(n.MemoryUsed, n.MemoryLimit)
	if n.All > 0 {
		columns[5], columns[6] = fmt.Sprintf("%d of %d", n.Ranks, n.All), humanize.Seconds(n.Quiet)
	}
	if n.OwnStep > 0 {
		columns[7] = time.Duration(n.OwnStep * float64(time.Second)).Round(time.Millisecond).String()
	}
	return columns
}

func share(used, of agent.Bytes) string {
	if of == 0 {
		return humanize.Bytes(int64(used))
	}
	return humanize.Bytes(int64(used)) + " of " + humanize.Bytes(int64(of))
}

// Problems returns what is wrong with the node and its GPUs.
func (n Node) Problems() (problems []string) {
	if n.Problem != "" {
		problems = append(problems, n.Problem)
	}
	for _, gpu := range n.GPUs {
		wrong := slices.Clone(gpu.Throttled)
		if gpu.Fault != "" {
			wrong = append(wrong, gpu.Fault)
		}
		if len(wrong) > 0 {
			problems = append(problems, fmt.Sprintf("GPU %d: %s", gpu.Index, strings.Join(wrong, "; ")))
		}
	}
	return problems
}
