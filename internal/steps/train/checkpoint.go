package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// findCheckpoint sets the checkpoint that the next attempt resumes from: the newest one that is complete for the ranks which start
// on each node. The log reports those that are passed over.
func (t *Training) findCheckpoint(ctx context.Context) {
	t.Spec.Checkpoint, t.Spec.CheckpointJob = nil, ""
	folder := t.Spec.CheckpointFolder(t.ID)
	if folder == "" {
		return
	}
	at := agent.Workspace + "/" + folder
	ctx, cancel := context.WithTimeout(ctx, jobs.Reachable)
	defer cancel()
	volumes, err := t.checkpoints(ctx, folder)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Log.Warn(fmt.Sprintf("Looking for checkpoints in %s failed, so %s is not set: %v", at, agent.CheckpointVariable, err))
		}
		return
	}
	best, incomplete, sure := newestComplete(volumes)
	name := best.Name
	for _, problem := range incomplete {
		t.Log.Warn("Passing over an incomplete checkpoint: " + problem + ".")
	}
	switch {
	case name != "":
		t.Spec.Checkpoint, t.Spec.CheckpointJob = &name, best.Job
		t.Log.Info(fmt.Sprintf("The newest complete checkpoint is %s/%s; attempt %d has it in %s.", agent.Workspace, t.Spec.CheckpointPath(t.ID),
			t.Spec.Attempt(), agent.CheckpointVariable))
		return
	case len(incomplete) == 0:
		t.Log.Info(fmt.Sprintf("%s has no checkpoint in a known format, so %s is not set.", at, agent.CheckpointVariable))
		return
	case !sure || t.Spec.Env[agent.ResumeVariable] != "":
		// The run that is resumed may have had another number of ranks.
		t.Log.Warn(fmt.Sprintf("It is not known whether %s has a complete checkpoint, so %s is not set.", at, agent.CheckpointVariable))
		return
	default:
		t.Log.Warn(fmt.Sprintf("%s has no complete checkpoint: attempt %d starts from the beginning.", at, t.Spec.Attempt()))
	}
	t.Spec.Checkpoint = &name
}

// checkpoints asks one node of each volume what it has for the ranks of all nodes that mount it. The answers are by node.
func (t *Training) checkpoints(ctx context.Context, folder string) (map[int][]agent.Checkpoint, error) {
	ids, err := nodes.Ask(ctx, t.Nodes, func(client *agent.Client, ctx context.Context) (string, error) {
		volume, err := client.Workspace(ctx)
		return cmp.Or(volume.ID, fmt.Sprintf("of node %d", client.Node())), err
	})
	if err != nil {
		return nil, err
	}
	searches := map[string]*agent.CheckpointSearch{}
	sharers := map[string]int{}
	var firsts nodes.Set
	for node, id := range ids {
		if sharers[id]++; searches[id] == nil {
			searches[id] = &agent.CheckpointSearch{Folder: folder, Job: t.ID, Series: t.Spec.Env[agent.ResumeVariable]}
			firsts = append(firsts, t.Nodes[node])
		}
		// With launcher command the script decides how many ranks there are.
		if t.Spec.Launcher != agent.Command {
			searches[id].World = t.Spec.Nodes * t.Spec.RanksPerNode
			searches[id].Ranks = append(searches[id].Ranks, t.Spec.Ranks(node)...)
		}
		searches[id].All = sharers[id] == len(t.Nodes)
	}
	answers, err := nodes.Ask(ctx, firsts, func(client *agent.Client, ctx context.Context) ([]agent.Checkpoint, error) {
		return client.Checkpoints(ctx, *searches[ids[client.Node()]])
	})
	found := map[int][]agent.Checkpoint{}
	for i, client := range firsts {
		found[client.Node()] = answers[i]
	}
	return found, err
}

// newestComplete returns the newest checkpoint that is complete on every volume, without a name for none. incomplete lists the newer ones
// and what each lacks. sure is false if one of these may be complete after all: its format is unknown, or it is marked as the latest.
func newestComplete(volumes map[int][]agent.Checkpoint) (best agent.Checkpoint, incomplete []string, sure bool) {
	var all []agent.Checkpoint
	for _, node := range slices.Sorted(maps.Keys(volumes)) {
		all = append(all, volumes[node]...)
	}
	slices.SortStableFunc(all, func(a, b agent.Checkpoint) int { return b.Modified.Compare(a.Modified) })
	seen := map[[2]string]bool{}
	sure = true
	for _, c := range all {
		if seen[placeOf(c)] {
			continue
		}
		seen[placeOf(c)] = true
		problems := problemsOf(c, volumes)
		if len(problems) == 0 {
			return c, incomplete, true
		}
		incomplete = append(incomplete, c.Name+": "+strings.Join(problems, "; "))
		sure = sure && c.Format != "" && !marked(c, volumes)
	}
	return agent.Checkpoint{}, incomplete, sure
}

// placeOf returns where a checkpoint is on each volume.
func placeOf(c agent.Checkpoint) [2]string { return [2]string{c.Job, c.Name} }

// marked reports whether a volume has the mark, which one rank writes.
func marked(c agent.Checkpoint, volumes map[int][]agent.Checkpoint) bool {
	for _, all := range volumes {
		if slices.ContainsFunc(all, func(other agent.Checkpoint) bool { return placeOf(other) == placeOf(c) && other.Marked }) {
			return true
		}
	}
	return false
}

// problemsOf returns why the checkpoint of that name is incomplete.
func problemsOf(c agent.Checkpoint, volumes map[int][]agent.Checkpoint) (problems []string) {
	for _, node := range slices.Sorted(maps.Keys(volumes)) {
		on := ""
		if len(volumes) > 1 {
			on = fmt.Sprintf("node %d: ", node)
		}
		i := slices.IndexFunc(volumes[node], func(other agent.Checkpoint) bool { return placeOf(other) == placeOf(c) })
		if i < 0 {
			problems = append(problems, on+"it has no part of it")
		} else if part := volumes[node][i]; part.Missing != "" {
			problems = append(problems, on+"missing "+humanize.OneLine(part.Missing, 300))
		} else if part.Format != c.Format {
			problems = append(problems, fmt.Sprintf("%sits part is %q, another one %q", on, part.Format, c.Format))
		}
	}
	return problems
}
