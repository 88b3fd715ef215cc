// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// What the ranks of a job write reaches the agent and its client: they run as the user of the agent, and can write its
// record and read its key. So the numbers of nodes and ranks come from the question, and texts that are printed have
// bounds.
const (
	// MaxNodes and MaxRanksPerNode bound a job.
	MaxNodes        = 4096
	MaxRanksPerNode = 1024
	// MaxAttempts bounds how often a job is started.
	MaxAttempts = 100
	// maxLines and maxText bound the texts of a rank, in lines and in bytes.
	maxLines = 100
	// maxLeftOut bounds the nodes that an attempt left out.
	maxLeftOut = 16
	maxText    = 2000
)

// Validate returns everything that is wrong with the numbers of s, nil if nothing is.
func (s JobSpec) Validate() error {
	var problems []error
	require := func(valid bool, format string, args ...any) {
		if !valid {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	require(s.Nodes >= 1 && s.Nodes <= MaxNodes, "nodes: %d: want 1 to %d", s.Nodes, MaxNodes)
	require(s.RanksPerNode >= 1 && s.RanksPerNode <= MaxRanksPerNode, "ranksPerNode: %d: want 1 to %d", s.RanksPerNode, MaxRanksPerNode)
	if len(s.Order) > 0 {
		sorted := slices.Sorted(slices.Values(s.Order))
		valid := len(sorted) == s.Nodes && s.Order[0] == 0
		for i, node := range sorted {
			valid = valid && i == node
		}
		require(valid, "order: %v: want each of the %d nodes once, and node 0 first", s.Order, s.Nodes)
	}
	if s.Checkpoint != nil && *s.Checkpoint != "" {
		require(IsCheckpointPath(*s.Checkpoint), "checkpoint: %q: want the path of a file or folder", shorten(*s.Checkpoint))
	}
	require(s.CheckpointJob == "" || IsJobID(s.CheckpointJob), "checkpointJob: %q: want the ID of a job", shorten(s.CheckpointJob))
	require(s.Grace >= 0 && s.Grace <= MaxStopGrace, "grace: %s: want 0 to %s", s.Grace, MaxStopGrace)
	require(s.Attempt() <= MaxAttempts, "attempts: %d: want at most %d", s.Attempt(), MaxAttempts)
	return errors.Join(problems...)
}

// Confine makes s the status of job id on a node, as the question named them. It drops ranks that the node does not have.
// An error means that nothing of s can be used.
func (s *JobStatus) Confine(id string, node int) error {
	if err := s.Spec.Validate(); err != nil {
		return err
	}
	if node < 0 || node >= s.Spec.Nodes {
		return fmt.Errorf("nodes: %d: node %d is not one of them", s.Spec.Nodes, node)
	}
	if !slices.Contains([]JobState{Running, Exited, Stopped, Restarted}, s.State) {
		return fmt.Errorf("state: %q is unknown", shorten(string(s.State)))
	}
	s.ID, s.Node = id, node
	var ranks []RankStatus
	for local, rank := range s.Spec.Ranks(node) {
		if i := slices.IndexFunc(s.Ranks, func(r RankStatus) bool { return r.Rank == rank }); i >= 0 {
			s.Ranks[i].Confine(rank, local, node)
			ranks = append(ranks, s.Ranks[i])
		}
	}
	s.Ranks = ranks
	maps.DeleteFunc(s.Collectives, func(rank int, _ []Collective) bool { return !slices.Contains(s.Spec.Ranks(node), rank) })
	for rank, collectives := range s.Collectives {
		s.Collectives[rank] = confineCollectives(collectives)
	}
	s.Outside = s.Outside[:min(len(s.Outside), MaxOutside)]
	for i := range s.Outside {
		s.Outside[i].Path, s.Outside[i].Newest = shorten(s.Outside[i].Path), shorten(s.Outside[i].Newest)
	}
	s.Quiet = max(0, s.Quiet)
	if len(s.RankSeconds) > s.Spec.Nodes*s.Spec.RanksOfNode() {
		s.RankSeconds = nil
	}
	s.StopReason, s.Work, s.Spec.LauncherWhy = shorten(s.StopReason), shorten(s.Work), shorten(s.Spec.LauncherWhy)
	for i := range s.Spec.Attempts {
		a := &s.Spec.Attempts[i]
		a.Attempt, a.Reason, a.Message = i+1, fail.Reason(shorten(string(a.Reason))), shorten(a.Message)
		if !IsCheckpointPath(a.Checkpoint) {
			a.Checkpoint = ""
		}
		// Names of nodes have fewer characters than names of checkpoints.
		a.LeftOut = slices.DeleteFunc(a.LeftOut[:min(len(a.LeftOut), maxLeftOut)], func(name string) bool { return !IsCheckpointName(name) })
	}
	s.Launcher.confine()
	return nil
}

// Confine sets the numbers of the rank and of its node to those that were asked for, and bounds the rest.
func (r *RankStatus) Confine(rank, local, node int) {
	r.Rank, r.LocalRank, r.Node = rank, local, node
	if r.DebugPort != DebugPort {
		r.DebugPort = 0
	}
	r.Quiet = max(0, r.Quiet)
	r.Exit.confine()
	r.Tail, r.Unhooked = shortLines(r.Tail), shorten(r.Unhooked)
	if r.TailFile = shorten(r.TailFile); !filepath.IsLocal(r.TailFile) {
		r.TailFile = ""
	}
	for _, python := range []*PythonError{r.Python, r.Below} {
		if python == nil {
			continue
		}
		python.Type, python.Message, python.First, python.File = shorten(python.Type), shorten(python.Message), shorten(python.First), shorten(
			python.File)
		python.InTree = shorten(python.InTree)
		python.Traceback = shortLines(python.Traceback)
	}
}

func (e *Exit) confine() { e.Signal, e.Error = shorten(e.Signal), shorten(e.Error) }

func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

func shortLines(lines []string) []string {
	lines = lines[max(0, len(lines)-maxLines):]
	for i, line := range lines {
		lines[i] = shorten(line)
	}
	return lines
}

// Confine makes f the facts of a node, as the question named it.
func (f *Facts) Confine(node int) {
	f.Node = node
	f.GPUs = f.GPUs[:min(len(f.GPUs), MaxRanksPerNode)]
	f.GPUProblem = shorten(f.GPUProblem)
}

var environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// PlaceVariables tell a rank its place among the others. They are the agent's and the launcher's alone: a rank with another one would
// overwrite a peer's record.
var PlaceVariables = []string{
	"RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NUM_NODES", "RANKS_PER_NODE", "MASTER_ADDR",
	"MASTER_PORT",
}

// ParseVariable reads an environment variable of the ranks, written KEY=VALUE.
func ParseVariable(entry string) (key, value string, err error) {
	key, value, found := strings.Cut(entry, "=")
	if !found || !environmentName.MatchString(key) {
		return "", "", fmt.Errorf("%q: want KEY=VALUE", entry)
	}
	reserved := []string{
		"MLENV_RUN", "MLENV_ATTEMPT", CheckpointVariable, EarlierWorkVariable, "MLENV_METRICS_FILE", "MLENV_JOB_ID", "MLENV_NODE",
		"MLENV_PASS_LOCAL_RANK", "MLENV_DEBUG_RANK", "MLENV_DEBUG_AT", "MLENV_RUN_DIR", "MLENV_TRACER", "MLENV_CPUS",
	}
	if slices.Contains(PlaceVariables, key) || slices.Contains(reserved, key) {
		return key, value, fmt.Errorf("variable %s: the launcher sets it; want another name", key)
	}
	return key, value, nil
}
