// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
)

// RankActivity is what a live rank does: the answer of POST /v1/jobs/ID/stacks has one for each rank of the node. The agent also
// writes the stacks of all threads into the record, as stacks-RANK.txt.
type RankActivity struct {
	// Rank is global.
	Rank int `json:"rank"`
	Node int `json:"node"`
	// State of the main thread, as the kernel has it: R runs, S sleeps, D waits for a disk or a device, T is stopped.
	State string `json:"state"`
	// Waits is the kernel's function in which the main thread sleeps, "" if it is unknown.
	Waits string `json:"waits,omitempty"`
	// CPU is how many processors the process uses, ChildCPU how many its descendants use, and IO what all of them read and wrote,
	// in the time of the request.
	CPU      float64 `json:"cpu"`
	ChildCPU float64 `json:"childCPU"`
	IO       Bytes   `json:"io"`
	// AllIO is what they have read and wrote since they began.
	AllIO Bytes `json:"allIO"`
	// Child is the name of the descendant that uses processors the most, such as a compiler's; "" for none, and for a Python.
	Child string `json:"child,omitempty"`
	// Lock is the file for which the main thread waits because another process seems to compile an extension of torch, "" for none.
	Lock string `json:"lock,omitempty"`
	// Frames show where the main thread is in Python, the innermost frame first.
	Frames []Frame `json:"frames,omitempty"`
	// Problem is why there are no frames.
	Problem string `json:"problem,omitempty"`
	// Collectives are the last ones that the rank has entered, one for each of its process groups, as torch's flight recorder has
	// them: nil without NCCL, or if the rank did not answer.
	Collectives []Collective `json:"collectives,omitempty"`
}

// Collective is the last one that a rank has entered in a process group.
type Collective struct {
	// ID names the group, Group describes it: several can have the same description.
	ID    string `json:"id"`
	Group string `json:"group"`
	// Ranks are the group's, or the first and the last one of a large group, whose size Size is.
	Ranks []int `json:"ranks"`
	Size  int   `json:"size,omitempty"`
	// Number counts the group's collectives, 0 before the first.
	Number    int64  `json:"number"`
	Operation string `json:"operation"`
	// State is scheduled, started or completed.
	State string `json:"state"`
	// Entered is how many seconds ago the rank entered it.
	Entered float64 `json:"entered"`
	// Pending is the first operation of the group, a collective or P2P, that the rank has entered and that is not completed; nil if
	// all are. It has no group of its own.
	Pending *Collective `json:"pending,omitempty"`
}

// maxGroups bounds the process groups of a rank.
const maxGroups = 64

// Frame is a call in Python.
type Frame struct {
	Function string `json:"function"`
	// File is relative to the folder of the job if it lies there.
	File string `json:"file"`
	Line int    `json:"line"`
}

// MaxFrames bounds the frames of a rank.
const MaxFrames = 100

// Stacks asks what the node's live ranks do, which takes some seconds. It does not disturb them.
func (c *Client) Stacks(ctx context.Context, id string) ([]RankActivity, error) {
	all, err := requestJSON[[]RankActivity](ctx, c, http.MethodPost, jobPath(id)+"/stacks", nil)
	for i := range all {
		a := &all[i]
		a.Node, a.State, a.Waits, a.Problem = c.node, shorten(a.State), shorten(a.Waits), shorten(a.Problem)
		a.Lock, a.Child = shorten(a.Lock), shorten(a.Child)
		a.Collectives = confineCollectives(a.Collectives)
		a.Frames = a.Frames[:min(len(a.Frames), MaxFrames)]
		for j := range a.Frames {
			a.Frames[j].Function, a.Frames[j].File = shorten(a.Frames[j].Function), shorten(a.Frames[j].File)
		}
	}
	return all, err
}

func confineCollectives(all []Collective) []Collective {
	all = all[:min(len(all), maxGroups)]
	for i := range all {
		for c := &all[i]; c != nil; c = c.Pending {
			c.ID, c.Group, c.Operation, c.State = shorten(c.ID), shorten(c.Group), shorten(c.Operation), shorten(c.State)
			if c.Pending != nil {
				c.Pending.Pending = nil
			}
		}
	}
	return all
}
