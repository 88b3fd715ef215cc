// SPDX-License-Identifier: Apache-2.0

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
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/jobs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// stopTime is how long the agents may take to end an installation after its deadline.
const stopTime = 30 * time.Second

const (
	// maxRequirements bounds a requirements file, in bytes.
	maxRequirements = 1 << 20
	// maxIncludes bounds the files that include each other.
	maxIncludes = 100
)

// requirements are a pip file of the tree, and how to install it.
type requirements struct {
	// name is the file's path in the tree, digest its RequirementsDigest.
	name   string
	digest tree.Digest
	// program is the agent on the nodes, venvs the folder of virtual environments there.
	program, venvs string
	timeout        time.Duration
	// job is who needs them, a run or a user of an environment.
	job cause.Job
}

// include is a line of a requirements file that names another one.
var include = regexp.MustCompile(`(?m)^[ \t]*(?:-r|-c|--requirement|--constraint)[ \t=]*([^ \t\r\n#]+)`)

// readRequirements reads the file, and after it those that it includes, as they will be on the nodes.
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
		content, err := claimfile.ReadIn(root, names[i], maxRequirements)
		if err == nil && i == maxIncludes {
			err = fmt.Errorf("want at most %d files", maxIncludes)
		}
		if err != nil {
			return nil, fail.Advise(fail.Becausef(fail.RequirementsFailed, "reading the requirements %s: %w", names[i], err),
				"name the file by its path from the top of the repository")
		}
		all = append(all, content...)
		for _, found := range include.FindAllSubmatch(content, -1) {
			included := string(found[1])
			if strings.Contains(included, "://") || filepath.IsAbs(included) {
				continue // only the nodes can read it
			}
			if included = filepath.Join(filepath.Dir(names[i]), included); !slices.Contains(names, included) {
				names = append(names, included)
			}
		}
	}
	return all, nil
}

// RequirementsDigest identifies a requirements file in the folder dir, with those that it includes, and names their
// virtual environment. hash is the tree of the folder: an environment with packages of the repository itself belongs to one tree, because
// the next commit has other code behind the same lines. Errors: RequirementsFailed.
func RequirementsDigest(dir, name string, hash tree.Digest) (tree.Digest, error) {
	content, err := readRequirements(dir, name)
	if namesLocalPackages(string(content)) {
		content = append(content, "\n# tree "+hash...)
	}
	return tree.Digest(fmt.Sprintf("%x", sha256.Sum256(content))), err
}

// install creates the virtual environment of a requirements file on each volume, unless it exists.
func (s sender) install(ctx context.Context, r requirements, hash tree.Digest) (venv string, err error) {
	venv = fmt.Sprintf("%s/%s", r.venvs, r.digest)
	s.log.Info(fmt.Sprintf("Installing %s into %s, unless it is installed already.", r.name, venv))
	found, err := s.volumes()
	if err != nil {
		return "", err
	}
	defer s.nodes.WaitForTurn(ctx, s.log, nodes.TurnTime)()
	deadline := time.Now().Add(r.timeout)
	// The agents enforce the deadline; this one is for agents that do not answer.
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(stopTime))
	defer cancel()
	id := fmt.Sprintf("venv-%.24s-%d", r.digest, time.Now().UnixNano())
	spec := agent.JobSpec{
		Run: r.job.Run, Launcher: agent.Command, Script: r.program, Args: []string{"venv", venv, r.name}, Tree: hash,
		Nodes: len(s.nodes), RanksPerNode: 1, Deadline: deadline,
	}
	err = found.volumes.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		return r.installOn(ctx, jobs.Job{ID: id, Members: nodes.Set{client}}, spec)
	})
	return venv, err
}

// Bounds of what an error shows of pip's output, because an agent may send any number of lines.
const (
	shownLines = 20
	shownBytes = 500
	// causeLines and causeBytes fit into the step's result message.
	causeLines = 3
	causeBytes = 180
)

var (
	// These find the words with which pip and its builds end, and do not judge them: what words mean is in package known.
	// raised matches the exception with which the build of a package failed, within the box that pip draws around its output, and compiled
	// the error of a compiler, gcc, clang or nvcc, whose first one counts.
	raised   = regexp.MustCompile(`^ +((?:\w+\.)*\w*(?:Error|Exception|NotFound)): .+`)
	compiled = regexp.MustCompile(`^ +\S+(?::\d+:\d+|\(\d+\)): (?:fatal )?error: .+`)
	// buildFailed matches pip's words if that is why it gave up, until 21.1 without a name, and not a package that it had passed over.
	buildFailed = regexp.MustCompile(
		`subprocess-exited-with-error|metadata-generation-failed|Failed to build|build-wheels-failed|Command errored out with exit status`)
	gaveUp = regexp.MustCompile(`ResolutionImpossible|No matching distribution`)
	// hidden matches the exception of a build that imports a package of images which pip hides from it.
	hidden = regexp.MustCompile(`^ +ModuleNotFoundError: No module named '(torch|numpy)[.']`)
	// pipError matches the lines in which pip and its builds report why they failed.
	pipError = regexp.MustCompile(`^\s*(ERROR|error):`)
)

// installOn runs pip on one node and waits until it ends. Still running, it would block the next job.
func (r requirements) installOn(ctx context.Context, job jobs.Job, spec agent.JobSpec) error {
	last, err := job.Run(ctx, spec, agent.Stop{Reason: "sync-repo no longer waits for the requirements"})
	if err != nil {
		return err
	}
	if s := last[0]; s.State == agent.Exited && len(s.Ranks) == 1 && s.Ranks[0].Exit == (agent.Exit{}) {
		return nil
	}
	return r.failed(job.Members[0].Node(), last[0])
}

// failed returns the error of an installation that did not succeed.
func (r requirements) failed(node int, last agent.JobStatus) error {
	var output []string
	for _, rank := range last.Ranks[:min(1, len(last.Ranks))] {
		output = rank.Tail
	}
	r.job.Record = last.Record
	next := r.job.LogCommand(node, fmt.Sprintf("rank-%d.log", node))
	reason, what, why := fail.RequirementsFailed, "pip failed", matching(output, pipError.MatchString)
	row, isKnown := known.Builds().FindOf("pip", strings.Join(output, "\n"))
	switch {
	case last.StopCause == agent.StopDeadline:
		what = fmt.Sprintf("pip did not end within %s", r.timeout)
	case last.State != agent.Exited:
		what = strings.TrimSuffix(fmt.Sprintf("pip was stopped: %s: %s", last.State, last.StopReason), ": ")
	case len(last.Ranks) == 0:
		what = "pip could not be started: " + last.Launcher.Error
	case isKnown && row.Reason == fail.DiskFull:
		reason = row.Reason
		what, why = "the workspace claim is full", matching(output, row.Matches)
		next = fmt.Sprintf("delete obsolete files from the workspace claim: mlenv shell %d -- sh -c 'du -sh /workspace/* /workspace/.mlenv/*'; "+
			"or have the claim expanded\n", node) + next
	case row.ID == "limited":
		what, why, next = "pip: "+row.Means, matching(output, row.Matches), row.Next+"\n"+next
	case isKnown:
		// What pip reports after it, a package that does not exist, is its consequence.
		what, why = "pip does not trust the certificate of a server", matching(output, row.Matches)
		next = "name a ConfigMap in network.trusted_ca of the cluster file whose key ca-bundle.crt has every CA to trust; " +
			"on OpenShift that is mlenv-trusted-ca, which the cluster fills\n" + next
	case buildError(output) != "":
		why = []string{strings.TrimSpace(buildError(output))}
		if match := hidden.FindStringSubmatch(buildError(output)); match != nil {
			next = fmt.Sprintf("let the build see the %s of the image: a line # mlenv: pip --no-build-isolation in %s, which then also names "+
				"what else its build needs\n", match[1], r.name) + next
		}
	case why == nil:
		why = output
	}
	why = shortened(why, causeLines, causeBytes)
	err := fail.Becausef(reason, "installing %s on node %d: %s", r.name, node,
		strings.Join(append([]string{what}, why...), "\n  "))
	output = slices.DeleteFunc(output, func(line string) bool { return slices.Contains(why, line) })
	return fail.Advise(fail.WithTail(err, shortened(output, shownLines, shownBytes)), "%s", next)
}

// buildError returns the line with which the build of a package failed, "" if pip gave up for another reason, or without one.
func buildError(output []string) string {
	if !slices.ContainsFunc(output, buildFailed.MatchString) || slices.ContainsFunc(output, gaveUp.MatchString) {
		return ""
	}
	if first := slices.IndexFunc(output, compiled.MatchString); first >= 0 {
		return output[first]
	}
	all := matching(output, raised.MatchString)
	return strings.Join(all[max(0, len(all)-1):], "")
}

func matching(lines []string, matches func(string) bool) (found []string) {
	for _, line := range lines {
		if matches(line) {
			found = append(found, line)
		}
	}
	return found
}

// shortened returns the last lines, each of so many bytes at most.
func shortened(lines []string, most, bytes int) (last []string) {
	for _, line := range lines[max(0, len(lines)-most):] {
		last = append(last, humanize.OneLine(line, bytes))
	}
	return last
}
