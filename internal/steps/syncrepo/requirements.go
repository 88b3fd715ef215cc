package syncrepo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// stopTime is what the agents have to end an installation whose time is over.
const stopTime = 30 * time.Second

// requirements are a pip file of the tree, and how they are installed.
type requirements struct {
	// name is the file's path in the tree.
	name    string
	content []byte
	// program is the agent's on the nodes; venvs is the folder there that virtual
	// environments lie in.
	program, venvs string
	timeout        time.Duration
	// run names the installation's record for people.
	run string
}

// include is a line of a requirements file that names another one.
var include = regexp.MustCompile(`(?m)^[ \t]*(?:-r|-c|--requirement|--constraint)[ \t=]*([^ \t\r\n#]+)`)

// readRequirements reads the file, and after it those that it includes, as they
// will be on the nodes.
func readRequirements(dir, name string) ([]byte, error) {
	// A link of the repository must not lead to a file of the step's own.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var all []byte
	names := []string{filepath.Clean(name)}
	for i := 0; i < len(names); i++ {
		content, err := root.ReadFile(names[i])
		if err != nil {
			return nil, fail.Advise(fail.Becausef(fail.RequirementsFailed, "reading the requirements %s: %w", names[i], err), "name the file by its path from the top of the repository")
		}
		all = append(all, content...)
		for _, found := range include.FindAllSubmatch(content, -1) {
			included := string(found[1])
			if strings.Contains(included, "://") || filepath.IsAbs(included) {
				continue // what lies there is not known here
			}
			if included = filepath.Join(filepath.Dir(names[i]), included); !slices.Contains(names, included) {
				names = append(names, included)
			}
		}
	}
	return all, nil
}

// RequirementsDigest is of a requirements file in the folder dir and those that it includes. It is the name of
// their virtual environment. Errors: RequirementsFailed.
func RequirementsDigest(dir, name string) (tree.Digest, error) {
	content, err := readRequirements(dir, name)
	return requirements{content: content}.digest(), err
}

func (r requirements) digest() tree.Digest {
	return tree.Digest(fmt.Sprintf("%x", sha256.Sum256(r.content)))
}

// install makes the virtual environment of a requirements file on each volume,
// once: it is named by the hash of the file and those that it includes.
func (s sender) install(ctx context.Context, r requirements, hash tree.Digest) (venv string, err error) {
	venv = fmt.Sprintf("%s/%s", r.venvs, r.digest())
	s.log.Info(fmt.Sprintf("Installing %s into %s, unless it is there already.", r.name, venv), "requirements", r.name, "venv", venv)
	volumes, _, err := s.volumes(ctx)
	if err != nil {
		return "", err
	}
	deadline := time.Now().Add(r.timeout)
	// The agents keep the deadline; this is for agents that do not answer.
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(stopTime))
	defer cancel()
	id := fmt.Sprintf("venv-%.24s-%d", r.digest(), time.Now().UnixNano())
	spec := agent.JobSpec{
		Run: r.run, Launcher: agent.Command, Script: r.program, Args: []string{"venv", venv, r.name}, Tree: hash,
		Nodes: len(s.nodes), RanksPerNode: 1, Deadline: deadline,
	}
	err = volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		err := r.installOn(ctx, client, id, spec)
		if err != nil {
			// Nobody waits for it any more, and it would be in the way of the next one.
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = client.StopJob(stopping, id, agent.Stop{Reason: "the requirements are not wanted any more"})
		}
		return err
	})
	return venv, err
}

// installOn runs pip on one node and waits for its end.
func (r requirements) installOn(ctx context.Context, client *agent.Client, id string, spec agent.JobSpec) error {
	if _, err := client.StartJob(ctx, id, spec); err != nil {
		return err
	}
	var last agent.JobStatus
	if err := client.WatchJob(ctx, id, func(status agent.JobStatus) error { last = status; return nil }); err != nil {
		return err
	}
	if last.State == agent.Exited && len(last.Ranks) == 1 && last.Ranks[0].Exit == (agent.Exit{}) {
		return nil
	}
	var tail []string
	for _, rank := range last.Ranks {
		tail = append(tail, rank.Tail...)
	}
	what := "pip failed"
	switch {
	case last.StopCause == agent.StopDeadline:
		what = fmt.Sprintf("pip had not ended after %s", r.timeout)
	case last.State != agent.Exited:
		what = strings.TrimSuffix(fmt.Sprintf("pip did not end by itself: %s: %s", last.State, last.StopReason), ": ")
	case len(last.Ranks) == 0:
		what = "pip could not be started: " + last.Launcher.Error
	}
	return fail.Advise(fail.Becausef(fail.RequirementsFailed, "installing %s on node %d: %s\n  %s", r.name, client.Node(), what, strings.Join(tail, "\n  ")),
		"the whole log is %s/rank-%d.log on node %d", last.Record, client.Node(), client.Node())
}
