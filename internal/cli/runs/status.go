package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
)

// askTime is what the nodes have to answer.
const askTime = 10 * time.Second

// status is where a run is.
type status struct {
	summary
	Message string `json:"message,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Image   string `json:"image,omitempty"`
	Mode    string `json:"mode,omitempty"`
	// Progress is the training's own last line about it.
	Progress string  `json:"progress,omitempty"`
	Tasks    []phase `json:"tasks,omitempty"`
	Live     []live  `json:"live,omitempty"`
	// Unseen is why the nodes of a training that runs could not be asked.
	Unseen string `json:"unseen,omitempty"`
}

// phase is a task of the run.
type phase struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Retries int       `json:"retries,omitempty"`
}

// live is a node of a training that runs.
type live struct {
	Node  int    `json:"node"`
	State string `json:"state"`
	// Ranks that live, of All.
	Ranks int `json:"ranks"`
	All   int `json:"all"`
	// Quiet is for how long none of them has printed anything, in seconds.
	Quiet float64 `json:"quietSeconds"`
}

// StatusCommand is mlenv status.
func StatusCommand() *cobra.Command {
	var flags kube.Flags
	var shown output
	cmd := &cobra.Command{
		Use:   "status RUN",
		Short: "Show where a run is: its phases, its nodes, how far the training is, and why it failed",
		Long: `Show where a run is. Of a training that runs its nodes are asked, by way of the API server; where they do not answer
that is said.

Exit code 0: it is shown, whatever the run's state; 1: it cannot be read; 2: wrong usage, or no such run.`,
		Example:           "  mlenv status train-multi-node-x7k2p\n  mlenv status train-multi-node-x7k2p --output=json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeRun(&flags),
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, k, err := named(cmd.Context(), flags, args[0])
			if err != nil {
				return err
			}
			s := k.status(cmd.Context(), clients)
			return shown.write(cmd.OutOrStdout(), s, func() error { return s.print(cmd.OutOrStdout(), time.Now()) })
		},
	}
	flags.AddTo(cmd.Flags())
	shown.addTo(cmd.Flags())
	return cmd
}

func (k known) status(ctx context.Context, clients *kube.Clients) status {
	s := status{summary: k.summary(clients.Namespace)}
	training := false
	for _, task := range k.tasks {
		s.Tasks = append(s.Tasks, phase{Name: task.Task, Status: string(task.Status), Reason: string(task.Reason), Started: task.Started, Ended: task.Ended, Retries: task.Retries})
		s.Commit = cmp.Or(s.Commit, task.Results["commit"])
		s.Image = cmp.Or(s.Image, task.Results["image-digest"])
		s.Mode = cmp.Or(task.Results["mode"], s.Mode)
		if task.Task == trainTask && k.run != nil {
			training = task.Status == run.Running && !task.Started.IsZero()
			s.Progress = lastProgress(ctx, clients, k.run, task)
		}
		if task.Status == run.Failed && s.State != cancelled {
			s.Message = cmp.Or(s.Message, task.Message)
		}
	}
	if training {
		s.ask(ctx, clients, k)
	}
	if r := k.receipt; r != nil {
		s.Message, s.Commit, s.Image, s.Mode = cmp.Or(r.Message, s.Message), cmp.Or(r.Commit, s.Commit), cmp.Or(r.Image, s.Image), cmp.Or(r.Mode, s.Mode)
		if len(k.tasks) == 0 {
			for _, p := range r.Phases {
				s.Tasks = append(s.Tasks, phase{Name: p.Name, Status: p.Status, Reason: p.Reason, Started: p.Started, Ended: p.Ended, Retries: p.Retries})
			}
		}
	}
	return s
}

// trainTask is the training's task in the pipeline.
const trainTask = "train"

// lastProgress is "" where there is none; status shows much else.
func lastProgress(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun, task run.TaskRun) (last string) {
	const tail = 500 // lines among which the last one about it is looked for
	_ = launch.Logs(ctx, clients, of, task, tail, func(e launch.Event) {
		if progress, ok := strings.CutPrefix(e.Text, progressWord); ok {
			last = progress
		}
	})
	return last
}

// ask asks the nodes.
func (s *status) ask(ctx context.Context, clients *kube.Clients, k known) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	set, err := nodes.Connect(ctx, clients, k.environment(), "")
	if err != nil {
		s.Unseen = err.Error()
		return
	}
	defer set.Close()
	s.Live = make([]live, len(set))
	err = set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		job, err := client.Job(ctx, k.uid())
		if err != nil && !agent.IsNotFound(err) {
			return err
		}
		l := live{Node: client.Node(), State: cmp.Or(string(job.State), "no job yet"), All: len(job.Ranks), Quiet: job.Quiet.Seconds()}
		for _, rank := range job.Ranks {
			if rank.Ended.IsZero() {
				l.Ranks++
			}
		}
		s.Live[client.Node()] = l
		return nil
	})
	if err != nil {
		s.Unseen = err.Error()
	}
}

func (s *status) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("run", s.Namespace+"/"+s.Name)
	row("state", s.State)
	row("reason", s.Reason)
	row("message", humanize.OneLine(s.Message, 500))
	row("environment", s.Environment)
	row("started", stamp(s.Started))
	if d := s.duration(now); d > 0 {
		row("time", humanize.Duration(d))
	}
	if s.Nodes > 0 {
		row("nodes", fmt.Sprint(s.Nodes))
	}
	row("mode", s.Mode)
	row("commit", s.Commit)
	row("image", s.Image)
	row("progress", s.Progress)
	if len(s.Tasks) > 0 {
		fmt.Fprintln(w, "\nPHASE\tSTATUS\tTIME\tREASON")
		for _, p := range s.Tasks {
			took := "-"
			switch {
			case !p.Ended.IsZero():
				took = humanize.Duration(p.Ended.Sub(p.Started))
			case !p.Started.IsZero() && p.Status == string(run.Running):
				took = humanize.Duration(now.Sub(p.Started))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, p.Status, took, p.Reason)
		}
	}
	if len(s.Live) > 0 && s.Unseen == "" {
		fmt.Fprintln(w, "\nNODE\tJOB\tRANKS\tQUIET FOR")
		for _, l := range s.Live {
			fmt.Fprintf(w, "%d\t%s\t%d of %d\t%s\n", l.Node, l.State, l.Ranks, l.All, humanize.Duration(time.Duration(l.Quiet*float64(time.Second))))
		}
	}
	if s.Unseen != "" {
		fmt.Fprintf(w, "\nThe nodes could not be asked: %s\n", s.Unseen)
	}
	return w.Flush()
}
