// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// fault describes what breaks, and what the project does then.
type fault struct {
	what string
	// scenarios are the names of the scenarios that test it.
	scenarios []string
	result    string
	// bound is the maximum time until the result, "" for none.
	bound string
}

// faults is the table of docs/project/faults.md.
var faults = []fault{
	{"a rank raises", []string{"rank-fails"}, "RankFailed, with the rank that failed first", "the other ranks end within 10 s"},
	{"the kernel kills a rank for its memory", []string{"out-of-memory"}, "OutOfMemory", "the other ranks end within 10 s"},
	{"the kernel ends a whole container for its memory", []string{"out-of-memory-group"}, "OutOfMemory, with the node", ""},
	{"a rank is stopped (SIGSTOP)", []string{"hangs"}, "Hang, with the rank that the others wait for; the stacks of all ranks are in " +
		"the record", "`hang-timeout`"},
	{"a rank does not reach the rendezvous", []string{"rendezvous-late"}, "the log names it and what it is doing; the training continues " +
		"when it arrives", "a minute"},
	{"a rank is killed, and later a node's pod is deleted, with `max-restarts=2`", []string{"restarted"},
		"the training starts again twice and succeeds; the receipt lists three attempts", ""},
	{"a rank is killed while all save a checkpoint, with `max-restarts=1`", []string{"resumed"},
		"the incomplete checkpoint is passed over; the training resumes from the one before and ends with the loss of an undisturbed run", ""},
	{"a Kubernetes node is drained, which evicts the pod, with `max-restarts=2`", []string{"evicted"},
		"the ranks get SIGTERM, and the training starts again", ""},
	{"an agent is killed, and with it its container", []string{"container-killed"}, "ContainerRestarted", ""},
	{"the pod of the step `train` is deleted", []string{"numbered-lines"}, "the training continues; no line is lost or doubled", ""},
	{"a rank prints a line of 10 MB, bytes that are not UTF-8, and 300,000 lines at once", []string{"wild-output"},
		"the record has every byte; the log has no control sequence", ""},
	{"a node's network is cut for 5 s", []string{"node-cut-short"}, "the training continues", ""},
	{"a node's network is cut until Kubernetes calls it unreachable, a minute", []string{"node-cut-minute"}, "the training continues", ""},
	{"a node's network is cut for good", []string{"node-lost"}, "NodeLost, with the Kubernetes node; the receipt names the GPUs that cannot " +
		"be confirmed free", "verdict after 2 minutes of silence; healthy nodes free 2 minutes later"},
	{"a node loses its power, and starts again after the verdict", []string{"node-stopped"}, "NodeLost, which stays the verdict",
		"verdict after 2 minutes of silence"},
	{"the same while Tekton's controller is away", []string{"node-lost-without-tekton"}, "the same; the reaper releases the environment, " +
		"and the verdict stays when Tekton is back", "healthy nodes free 2 minutes after the verdict"},
	{"a rank is killed, and later a node's network is cut for good, with `max-restarts=3` and a third node in the cluster file",
		[]string{"node-replaced"}, "the training resumes twice, at last without the lost node, and ends with the loss of an undisturbed run; " +
			"the receipt names the node that is left out", "the pod moves when an administrator marks the node out of service"},
	{"the run is cancelled", []string{"cancelled", "run-cancelled-by-ctrl-c"}, "Cancelled", "released within 2 minutes"},
	{"the run is cancelled without its finally tasks", []string{"cancelled-without-teardown"}, "the running step releases the environment",
		"2 minutes"},
	{"the run is deleted", []string{"deleted"}, "the step stops the ranks; only claims are kept", "2 minutes"},
	{"a run ends without teardown", []string{"reaped"}, "the reaper releases the environment", "2 minutes"},
	{"a run is deleted while it trains, and created again under its name", []string{"same-name"}, "the first is released; the second succeeds",
		""},
	{"a second run requests the same environment", []string{"busy"}, "EnvironmentBusy, with the holder, or it waits", ""},
	{"another user takes the environment by force", []string{"lease-stolen"}, "EnvironmentMissing, with the new holder, whose " +
		"environment is kept", ""},
	{"the API server is away for 20 s during a build", []string{"api-server-away"}, "the build continues; its log is complete", ""},
	{"the API server is away for 30 s in every task of a run", []string{"api-server-away-in-each-task"}, "the run succeeds", ""},
	{"etcd stands still 7 of 10 seconds", []string{"etcd-slow"}, "the run succeeds", ""},
	{"Tekton's controller is restarted in every task of a run", []string{"tekton-restarted"}, "the run succeeds", ""},
	{"the one of two Tekton controllers that leads is killed", []string{"tekton-two-controllers"}, "the run succeeds", ""},
	{"the pod of a build is deleted", []string{"build-interrupted"}, "BuildPodLost", ""},
	{"ranks fill the workspace", []string{"workspace-full"}, "DiskFull", ""},
	{"the disk of a build is full", []string{"build-disk"}, "DiskFull", ""},
	{"the disk for the logs of pods is full", []string{"log-full"}, "the run succeeds; the log of a step breaks off, the record has " +
		"every line", ""},
	{"the registry refuses the built image", []string{"build-push"}, "PushRefused", ""},
	{"the registry has no such image", []string{"image-missing"}, "ImageUnavailable, before a GPU is held", ""},
	{"the registry is away during a pull", []string{"registry-away"}, "the pods start when it is back", "`start-timeout`"},
	{"the git server is away", []string{"git-away"}, "RepositoryUnavailable before anything is held; a sync is tried again", "20 s"},
	{"the git server is slow, and breaks off in the middle of a transfer", []string{"git-slow"}, "the transfer starts again; the run succeeds",
		""},
	{"the git server takes connections and answers nothing", []string{"git-slow"}, "preflight does not know; RepositoryUnavailable from " +
		"sync-repo", "2 minutes"},
	{"DNS is away", []string{"dns-away"}, "a training continues; a new run ends with RepositoryUnavailable before anything is held", "20 s"},
	{"a GPU has fallen off the bus", []string{"gpu-missing"}, "GPUMissing", ""},
	{"a rail is down, or is cut during the measurement", []string{"rdma-faults"}, "the rail is not used; NetworkBroken",
		"check-fabric ends after 90 s"},
	{"a node is slow", []string{"rdma-slow-node"}, "check-fabric names it", ""},
	{"the processor of a rank is throttled", []string{"slow-device"}, "check-fabric names the rank and its node", ""},
}

var update = flag.Bool("update", false, "write docs/project/faults.md")

const (
	faultsFile             = "../../docs/project/faults.md"
	faultsBegin, faultsEnd = "<!-- written by make faults E2E_FLAGS=-update -->\n", "<!-- end -->"
)

// TestFaultsPage fails if docs/project/faults.md lacks the table, or if the table names a scenario that does not exist.
func TestFaultsPage(t *testing.T) {
	list, err := os.ReadFile("training_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		for _, name := range f.scenarios {
			if !strings.Contains(string(list), `"`+name+`"`) {
				t.Errorf("scenario %s not found; it should test: %s", name, f.what)
			}
		}
	}
	page, err := os.ReadFile(faultsFile)
	if err != nil {
		t.Fatal(err)
	}
	want, err := faultsPage(string(page), "")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(faultsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(page) {
		t.Error("the table in docs/project/faults.md is outdated; write it: go test ./test/e2e -update")
	}
}

// faultsPage writes the table into the page. If run is empty, the line about the last run stays.
func faultsPage(page, run string) (string, error) {
	before, rest, found := strings.Cut(page, faultsBegin)
	old, after, ended := strings.Cut(rest, faultsEnd)
	if !found || !ended {
		return "", fmt.Errorf("docs/project/faults.md lacks the lines %q and %q", faultsBegin, faultsEnd)
	}
	if run == "" {
		run, _, _ = strings.Cut(old, "\n")
	}
	text := run + "\n\n| fault | scenario | result | bound |\n| --- | --- | --- | --- |\n"
	for _, f := range faults {
		row := "|"
		for _, cell := range []string{f.what, "`" + strings.Join(f.scenarios, "`, `") + "`", f.result, f.bound} {
			row += strings.TrimSuffix(" "+cell, " ") + " |"
		}
		text += row + "\n"
	}
	return before + faultsBegin + text + faultsEnd + after, nil
}

// isFault reports whether the scenario tests a fault.
func isFault(scenario string) bool {
	return slices.ContainsFunc(faults, func(f fault) bool { return slices.Contains(f.scenarios, scenario) })
}
