// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// CheckpointVariable is set in every attempt after the first: the path of the newest complete checkpoint, or "" if the run has
// checkpoints and none of them is complete.
const CheckpointVariable = "MLENV_LAST_CHECKPOINT"

// MaxCheckpoints is how many checkpoints of a run an agent looks at, the newest ones.
const MaxCheckpoints = 8

// checkpointName is also the name of a file or folder.
var checkpointName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.=+@,-]{0,199}$`)

// IsCheckpointName reports whether a file or folder of a checkpoint's path may have the name.
func IsCheckpointName(name string) bool { return checkpointName.MatchString(name) }

// CheckpointLevels is how far below the folder of checkpoints one may be: Lightning's are lightning_logs/version_0/checkpoints/NAME.ckpt.
const CheckpointLevels = 4

// IsCheckpointPath reports whether a checkpoint may have the path below the folder of checkpoints.
func IsCheckpointPath(path string) bool {
	names := strings.Split(path, "/")
	return len(names) <= CheckpointLevels && !slices.ContainsFunc(names, func(name string) bool { return !IsCheckpointName(name) })
}

// CheckpointFolder returns the folder of the job's checkpoints, relative to the workspace. It is "" if the run that the job resumes has
// no valid name.
func (s JobSpec) CheckpointFolder(id string) string {
	run := s.Series(id)
	if !IsCheckpointName(run) {
		return ""
	}
	return filepath.Join("checkpoints", run)
}

// CheckpointPath returns the path of the checkpoint that an attempt resumes from, relative to the workspace; "" if there is none, or it is
// not known.
func (s JobSpec) CheckpointPath(id string) string {
	folder := s.CheckpointFolder(id)
	if s.CheckpointJob != "" {
		folder = filepath.Join(WorkFolder, s.CheckpointJob)
	}
	if s.Checkpoint == nil || *s.Checkpoint == "" || folder == "" {
		return ""
	}
	return filepath.Join(folder, *s.Checkpoint)
}

// EarlierWorkVariable is set for the ranks of a run that resumes another one: the working directories of the earlier runs of the series,
// the newest first, separated by colons.
const EarlierWorkVariable = "MLENV_EARLIER_WORK"

// WorkFolder is the folder of working directories, relative to the workspace.
const WorkFolder = ".mlenv/work"

// RecordFolder is the folder of records, relative to the workspace.
const RecordFolder = ".mlenv/runs"

// GivenFile is in the record of a local run: the params of its command line. They may have keys.
const GivenFile = "params.json"

// jobID is also the name of a folder.
var jobID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// IsJobID reports whether a job may have the id.
func IsJobID(id string) bool { return jobID.MatchString(id) }

// Series returns the name of the first run of those that resume each other: it owns the folder of checkpoints.
func (s JobSpec) Series(id string) string { return cmp.Or(s.Env[ResumeVariable], s.Run, id) }

// CheckpointSearch is the body of POST /v1/checkpoints.
type CheckpointSearch struct {
	// Folder is relative to the workspace.
	Folder string `json:"folder"`
	// Job is the job that resumes, "" for none: the agent also looks in its working directory. Series is the first of the runs that
	// resume each other, "" for none: the agent also looks in the working directories of the other jobs of the series.
	Job    string `json:"job,omitempty"`
	Series string `json:"series,omitempty"`
	// World is the number of ranks that save, 0 if it is unknown.
	World int `json:"world,omitempty"`
	// Ranks are those whose parts the node's volume must hold. All means all ranks.
	Ranks []int `json:"ranks,omitempty"`
	All   bool  `json:"all,omitempty"`
}

// Checkpoint is one that a volume holds, or a part of one: the answer has a list of them, the newest first.
type Checkpoint struct {
	// Name is its path below the folder that was searched.
	Name string `json:"name"`
	// Job is the job in whose working directory it is, "" for the folder of checkpoints.
	Job string `json:"job,omitempty"`
	// Format is "" for a file or folder of another format, which only the mark `latest` makes a checkpoint.
	Format CheckpointFormat `json:"format,omitempty"`
	// Modified is when its newest file was written.
	Modified time.Time `json:"modified"`
	// Marked is true for the one that the file latest names, because the training had finished it.
	Marked bool `json:"marked,omitempty"`
	// Missing is what it lacks, "" if it has everything that was searched for.
	Missing string `json:"missing,omitempty"`
}

// CheckpointFormat is how a checkpoint is written.
type CheckpointFormat string

const (
	// DeepSpeedModel has the model in one file, without ZeRO.
	DeepSpeedModel CheckpointFormat = "DeepSpeed"
	// DeepSpeedOptimizer has the states of the optimizer in one file for each rank.
	DeepSpeedOptimizer CheckpointFormat = "DeepSpeed ZeRO"
	// DeepSpeedShards has the model in one file for each rank, too.
	DeepSpeedShards CheckpointFormat = "DeepSpeed ZeRO-3"
	// TorchDistributed is written by torch.distributed.checkpoint.
	TorchDistributed CheckpointFormat = "torch.distributed.checkpoint"
	// Trainer is written by the Trainer of transformers. It may contain folders of DeepSpeed, and for FSDP of torch.distributed.checkpoint.
	Trainer CheckpointFormat = "transformers Trainer"
	// Accelerate is written by accelerate's save_state, with the same folders.
	Accelerate CheckpointFormat = "accelerate"
	// Lightning is a file, or a folder of DeepSpeed or torch.distributed.checkpoint.
	Lightning CheckpointFormat = "Lightning"
)

// Checkpoints returns what the node's workspace has of the checkpoints in a folder.
func (c *Client) Checkpoints(ctx context.Context, search CheckpointSearch) ([]Checkpoint, error) {
	all, err := requestJSON[[]Checkpoint](ctx, c, http.MethodPost, "/v1/checkpoints", search)
	all = slices.DeleteFunc(all[:min(len(all), MaxCheckpoints)], func(c Checkpoint) bool {
		return !IsCheckpointPath(c.Name) || c.Job != "" && !IsJobID(c.Job)
	})
	for i := range all {
		all[i].Format, all[i].Missing = CheckpointFormat(shorten(string(all[i].Format))), shorten(all[i].Missing)
	}
	return all, err
}
