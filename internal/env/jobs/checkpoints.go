// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// NewestCheckpoint returns the newest complete checkpoint of the job that is not doubtful, and its path on the workspace; both are empty
// if the nodes have none.
func (j Job) NewestCheckpoint(ctx context.Context, spec agent.JobSpec) (found agent.Checkpoint, at string, err error) {
	if spec.CheckpointFolder(j.ID) == "" {
		return found, "", nil
	}
	volumes, err := j.Checkpoints(ctx, spec)
	if err != nil {
		return found, "", err
	}
	volumes, _ = j.WithoutDoubtful(volumes, spec)
	if found, _, _ = NewestComplete(volumes); found.Name == "" {
		return found, "", nil
	}
	spec.Checkpoint, spec.CheckpointJob = &found.Name, found.Job
	return found, path.Join(agent.Workspace, spec.CheckpointPath(j.ID)), nil
}

// SavedSince returns the clause of a message about a checkpoint that was written after the nodes began to stop their ranks, or about a
// program that does not save then, as no rank handled SIGTERM; else "".
func SavedSince(statuses []agent.JobStatus, newest agent.Checkpoint) string {
	var since time.Time
	unhandled := true
	for _, status := range statuses {
		unhandled = unhandled && (status.NoHandler || status.Stopping.IsZero())
		if !status.Stopping.IsZero() && (since.IsZero() || status.Stopping.Before(since)) {
			since = status.Stopping
		}
	}
	// Filesystems keep the time of a file to the second, or by another clock.
	const rounding = 2 * time.Second
	switch {
	case since.IsZero():
		return ""
	case newest.Name == "" || newest.Modified.Before(since.Add(-rounding)):
		if unhandled {
			return "no rank handled SIGTERM, so the program saved nothing when it was stopped"
		}
		return ""
	}
	return "its ranks saved " + path.Base(newest.Name) + " before they ended"
}

// Checkpoints asks one node of each volume what it has for the ranks of all nodes that mount it. The answers are by node.
func (j Job) Checkpoints(ctx context.Context, spec agent.JobSpec) (map[int][]agent.Checkpoint, error) {
	ids, err := nodes.AskAll(ctx, j.Members, func(client *agent.Client, ctx context.Context) (string, error) {
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
			searches[id] = &agent.CheckpointSearch{Folder: spec.CheckpointFolder(j.ID), Job: j.ID, Series: spec.Env[agent.ResumeVariable]}
			firsts = append(firsts, j.Members[node])
		}
		// With launcher command the script decides how many ranks there are.
		if spec.Launcher != agent.Command {
			searches[id].World = spec.Nodes * spec.RanksPerNode
			searches[id].Ranks = append(searches[id].Ranks, spec.Ranks(node)...)
		}
		searches[id].All = sharers[id] == len(j.Members)
	}
	answers, err := nodes.AskAll(ctx, firsts, func(client *agent.Client, ctx context.Context) ([]agent.Checkpoint, error) {
		return client.Checkpoints(ctx, *searches[ids[client.Node()]])
	})
	found := map[int][]agent.Checkpoint{}
	for i, client := range firsts {
		found[client.Node()] = answers[i]
	}
	return found, err
}

// WithoutDoubtful returns the checkpoints that may be resumed from, and the first part of each other one: those that an earlier attempt
// wrote after its last good loss.
func (j Job) WithoutDoubtful(volumes map[int][]agent.Checkpoint, spec agent.JobSpec) (sound map[int][]agent.Checkpoint,
	doubtful []agent.Checkpoint) {
	passed := map[[2]string]bool{}
	for _, node := range slices.Sorted(maps.Keys(volumes)) {
		for _, c := range volumes[node] {
			if isDoubtful(c.Modified.Add(j.behind(node)), c.Modified, spec.Attempts) && !passed[placeOf(c)] {
				passed[placeOf(c)] = true
				doubtful = append(doubtful, c)
			}
		}
	}
	sound = map[int][]agent.Checkpoint{}
	for node, all := range volumes {
		sound[node] = slices.DeleteFunc(slices.Clone(all), func(c agent.Checkpoint) bool { return passed[placeOf(c)] })
	}
	return sound, doubtful
}

// isDoubtful reports whether one of the attempts wrote a checkpoint after its last good loss. written is when it was written by this
// clock, modified by that of the storage. Whatever the last attempt left is older than the next one, so that an end is known by the clock
// of the storage itself.
func isDoubtful(written, modified time.Time, attempts []agent.Attempt) bool {
	return slices.ContainsFunc(attempts, func(a agent.Attempt) bool {
		last := a.Attempt == len(attempts)
		return !a.Doubt.IsZero() && written.After(a.Doubt) && (last || !modified.After(a.DoubtEnd))
	})
}

// behind returns how far the clock of a node is behind this one, as far as is known.
func (j Job) behind(node int) time.Duration {
	i := slices.IndexFunc(j.Members, func(client *agent.Client) bool { return client.Node() == node })
	if i < 0 {
		return 0
	}
	return j.Members[i].Behind()
}

// NewestComplete returns the newest checkpoint that is complete on every volume, without a name for none. incomplete lists the newer ones
// and what each lacks. sure is false if one of these may be complete after all: its format is unknown, or it is marked as the latest.
func NewestComplete(volumes map[int][]agent.Checkpoint) (best agent.Checkpoint, incomplete []string, sure bool) {
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
