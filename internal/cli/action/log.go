// SPDX-License-Identifier: Apache-2.0

package action

import (
	"crypto/rand"
	"slices"
	"sync"

	"github.com/sethvargo/go-githubactions"
)

// groups prints the lines of tasks that run in parallel so that each task is one group of the workflow's log. It
// prints the lines of one task at once and keeps the others' lines. A runner executes lines that begin with "::", so
// stop-commands surrounds what a training may have printed.
type groups struct {
	gh *githubactions.Action
	mu sync.Mutex
	// tasks are in the order of their first lines. The first one is open, the others wait.
	tasks []*group
	// token ends stop-commands, which stopped means.
	token   string
	stopped bool
}

type group struct {
	task string
	// lines are those that came before the group was opened.
	lines []string
	ended bool
}

func newGroups(gh *githubactions.Action) *groups {
	return &groups{gh: gh, token: rand.Text()}
}

func (g *groups) printLine(task, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.tasks, func(t *group) bool { return t.task == task })
	if i < 0 {
		i = len(g.tasks)
		g.tasks = append(g.tasks, &group{task: task})
		if i == 0 {
			g.open()
		}
	}
	if i == 0 {
		g.write(text)
		return
	}
	g.tasks[i].lines = append(g.tasks[i].lines, text)
}

func (g *groups) open() {
	if len(g.tasks) == 0 {
		return
	}
	g.gh.Group(g.tasks[0].task)
	g.stopCommands()
	for _, line := range g.tasks[0].lines {
		g.write(line)
	}
}

// endTask ends a task, and opens the next group when the first one has ended.
func (g *groups) endTask(task string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endTaskLocked(task)
}

func (g *groups) endTaskLocked(task string) {
	for _, t := range g.tasks {
		t.ended = t.ended || t.task == task
	}
	for len(g.tasks) > 0 && g.tasks[0].ended {
		g.resumeCommands()
		g.gh.EndGroup()
		g.tasks = g.tasks[1:]
		g.open()
	}
}

func (g *groups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tasks {
		g.endTaskLocked(t.task)
	}
}

// maskSecret has the runner hide a secret from now on. While commands are stopped the runner would print the command, with the secret.
func (g *groups) maskSecret(secret string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		g.resumeCommands()
		defer g.stopCommands()
	}
	g.gh.AddMask(secret)
}

// print prints a text outside of the groups that may contain what a training has printed.
func (g *groups) print(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopCommands()
	g.write(text)
	g.resumeCommands()
}

func (g *groups) stopCommands() {
	g.stopped = true
	g.gh.IssueCommand(&githubactions.Command{Name: "stop-commands", Message: g.token})
}

func (g *groups) resumeCommands() {
	g.stopped = false
	g.gh.IssueCommand(&githubactions.Command{Name: g.token})
}

// write writes a line as it is; Infof would take it for a format.
func (g *groups) write(line string) { g.gh.Infof("%s", line) }
