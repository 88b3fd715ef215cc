package action

import (
	"crypto/rand"

	"github.com/sethvargo/go-githubactions"
)

// groups prints the lines of tasks that go on side by side so that each task is one
// group of the workflow's log. One is printed as it goes, the lines of the others
// are kept until it is their turn. A runner obeys lines that begin with "::" as
// commands; those of a training are no commands of ours, so it is told not to.
type groups struct {
	gh *githubactions.Action
	// open is the task that is printed, "" for none.
	open string
	// waiting are other tasks, in the order of their first line.
	waiting []*group
	// token is the line, between colons, that has the runner obey again.
	token string
}

type group struct {
	task  string
	lines []string
	ended bool
}

func newGroups(gh *githubactions.Action) *groups {
	return &groups{gh: gh, token: rand.Text()}
}

// line is one line of a task.
func (g *groups) line(task, text string) {
	if g.open == "" {
		g.begin(task)
	}
	if g.open == task {
		g.print(text)
		return
	}
	for _, waiting := range g.waiting {
		if waiting.task == task {
			waiting.lines = append(waiting.lines, text)
			return
		}
	}
	g.waiting = append(g.waiting, &group{task: task, lines: []string{text}})
}

// end ends a task: nothing comes of it any more.
func (g *groups) end(task string) {
	if g.open != task {
		for _, waiting := range g.waiting {
			if waiting.task == task {
				waiting.ended = true
			}
		}
		return
	}
	g.finish()
	for len(g.waiting) > 0 {
		next := g.waiting[0]
		g.waiting = g.waiting[1:]
		g.begin(next.task)
		for _, line := range next.lines {
			g.print(line)
		}
		if !next.ended {
			return
		}
		g.finish()
	}
}

// close ends all of them.
func (g *groups) close() {
	for _, waiting := range g.waiting {
		waiting.ended = true
	}
	if g.open != "" {
		g.end(g.open)
	}
}

func (g *groups) begin(task string) {
	g.open = task
	g.gh.Group(task)
	g.stopCommands()
}

func (g *groups) finish() {
	g.obeyAgain()
	g.gh.EndGroup()
	g.open = ""
}

// say prints a text of no task, in which may be what a training has printed.
func (g *groups) say(text string) {
	g.stopCommands()
	g.print(text)
	g.obeyAgain()
}

func (g *groups) stopCommands() {
	g.gh.IssueCommand(&githubactions.Command{Name: "stop-commands", Message: g.token})
}

func (g *groups) obeyAgain() { g.gh.IssueCommand(&githubactions.Command{Name: g.token}) }

// print prints a line as it is; Infof would take it for a format.
func (g *groups) print(line string) { g.gh.Infof("%s", line) }
