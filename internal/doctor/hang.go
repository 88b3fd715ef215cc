// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// endedFor is how far apart ranks may start and end normally.
const endedFor = time.Minute

func (e *examination) examineHang() {
	for _, n := range e.nodes {
		e.examineSilent(n)
		e.restarted(n)
	}
	for _, j := range e.jobs {
		e.endedRanks(j)
		e.unknown(j)
		e.quiet(j)
	}
	e.resolution()
	e.blockedTraffic()
}

// examineSilent reports an agent that does not answer, or only partly. start explains pods that do not run.
func (e *examination) examineSilent(n *node) {
	switch {
	case fail.ReasonOf(n.healthErr) == fail.AgentVersion:
		e.found(fail.AgentVersion, n.String(), n.healthErr.Error(), fail.NextOf(n.healthErr))
	case apierrors.IsForbidden(n.healthErr):
		e.found(NotReadable, n.String(), n.healthErr.Error(), fail.NextOf(n.healthErr))
	case n.healthErr != nil && (n.running() || e.clusterErr != nil || e.here):
		e.found(fail.AgentUnreachable, n.String(), n.healthErr.Error(), e.agentLogCommand(n)+
			e.advice(fmt.Sprintf("; oc get pod %s -n %s -o wide (is its Kubernetes node in order?)", n.pod, e.env.Namespace), ""))
	case n.factsErr != nil:
		e.found(AgentStuck, n.String(), fmt.Sprintf("its agent answers, but not to requests about GPUs and volumes: %v", n.factsErr),
			e.execCommand(n, fmt.Sprintf("sh -c 'timeout 5 nvidia-smi; timeout 5 df %s %s'", agent.Workspace, agent.Datasets))+
				" (what hangs is the GPU's driver, or a volume's server)")
	case n.jobsErr != nil:
		e.found(fail.AgentUnreachable, n.String(), n.jobsErr.Error(), e.agentLogCommand(n))
	}
}

// restarted reports a container that restarted, which ended everything in it.
func (e *examination) restarted(n *node) {
	if n.object == nil {
		return
	}
	for _, c := range n.object.Status.ContainerStatuses {
		end := c.LastTerminationState.Terminated
		if end == nil || c.State.Running == nil {
			continue
		}
		f := e.found(fail.ContainerRestarted, n.String(), fmt.Sprintf("container %s ended with %d (%s) %s ago and restarted, %s in total",
			c.Name, end.ExitCode, cmp.Or(end.Reason, "no reason given"), formatAge(e.now.Sub(end.FinishedAt.Time)),
			humanize.Count(int(c.RestartCount), "time")),
			fmt.Sprintf("oc logs %s -n %s -c %s --previous --tail=50", n.pod, e.env.Namespace, c.Name))
		if kube.ReasonFor(end.Reason) == fail.OutOfMemory {
			f.Next = "raise resources.limits.memory in the cluster file, or use a smaller batch, fewer workers or offloading"
		}
		if !slices.ContainsFunc(e.jobs, func(j job) bool { s, ok := j.statusOf(n.number); return ok && s.State == agent.Restarted }) {
			f.Level = fail.Suspicious
		}
	}
}

// endedRanks reports ranks that have ended and for which others wait.
func (e *examination) endedRanks(j job) {
	if c, ok := cause.Find(j.statuses); ok && (c.Known || c.Waiting != nil || !c.Rank.Stopped) {
		err := c.Err(cause.Job{Run: j.statuses[0].Spec.Run, Environment: e.env.Name, Namespace: e.env.Namespace, Record: j.statuses[0].Record})
		evidence := fail.Details(err)
		if j.running() {
			evidence += "\nthe job still runs on other nodes, whose ranks wait for that rank"
		}
		e.found(fail.ReasonOf(err), j.displayName(), evidence, fail.NextOf(err)).Level = fail.Broken
		return
	}
	if !j.running() {
		return
	}
	var done []string
	for _, status := range j.statuses {
		for _, rank := range status.Ranks {
			if !rank.Ended.IsZero() && rank.Exit == (agent.Exit{}) && e.now.Sub(rank.Ended) > endedFor {
				done = append(done, fmt.Sprintf("rank %d on node %d (%s ago)", rank.Rank, status.Node, formatAge(e.now.Sub(rank.Ended))))
			}
		}
	}
	if done != nil {
		e.found(RankEnded, j.displayName(), "exited with 0 while others run: "+strings.Join(done, ", "),
			"let the script end after the same number of steps on all ranks: a rank with less data leaves the others waiting in a collective")
	}
}

// unknown reports nodes that should run a part of a job but do not know it.
func (e *examination) unknown(j job) {
	if !j.running() || e.now.Sub(j.statuses[0].Started) < endedFor {
		return
	}
	for _, n := range e.nodes[:min(j.spec().Nodes, len(e.nodes))] {
		if _, ok := j.statusOf(n.number); !ok && n.jobs != nil {
			e.found(JobMissing, n.String(), j.displayName()+" runs on other nodes, but this one does not know it: its pod was recreated, or the "+
				"launch did not reach it",
				"start the training again from its last checkpoint: the running ranks cannot continue")
		}
	}
}

// isQuiet reports whether a job has been silent for long.
func (e *examination) isQuiet(j job) bool {
	quiet, ok := j.quietTime()
	return ok && quiet >= e.QuietAfter
}

// quiet reports a job that prints nothing.
func (e *examination) quiet(j job) {
	if !e.isQuiet(j) {
		return
	}
	quiet, _ := j.quietTime()
	evidence := fmt.Sprintf("no rank has printed anything or written metrics for %s", formatAge(quiet))
	if rank := j.spec().DebugRank; rank != nil {
		e.found(NoProgress, j.displayName(), fmt.Sprintf("%s: rank %d waits for a debugger, or runs in one", evidence, *rank),
			"attach to it, or let it continue").Level = fail.Note
		return
	}
	evidence += "; " + cause.DescribeHang(j.spec(), j.statuses, j.activities)
	if busy := e.utilization(); busy != "" {
		evidence += "; GPUs in percent: " + busy + " (near 100 everywhere: ranks wait in a collective; near 0: for data or in Python)"
	}
	next := fmt.Sprintf("%s: the others wait for the rank whose stack differs",
		e.execCommand(e.nodes[0], fmt.Sprintf("sh -c 'cat %s/stacks-*.txt'", j.statuses[0].Record)))
	e.found(NoProgress, j.displayName(), evidence, next)
}

// resolution reports names that ranks could not look up, or that resolve to a wrong address.
func (e *examination) resolution() {
	next := fmt.Sprintf("oc get endpointslices -n %s -l kubernetes.io/service-name=%s; oc get pods -n openshift-dns", e.env.Namespace,
		e.env.Service)
	for _, n := range e.nodes {
		for _, other := range e.nodes {
			name := e.env.TLSName(other.number)
			if problem := n.names.Problems[name]; problem != "" && other.running() {
				e.found(fail.NameResolution, n.String(), fmt.Sprintf("%s: %s", name, problem), next)
			}
			addresses := n.names.Addresses[name]
			if len(addresses) > 0 && other.running() && other.object.Status.PodIP != "" && !hasAddress(addresses, other.object) {
				e.found(fail.NameResolution, n.String(),
					fmt.Sprintf("%s resolves to %s: want %s, the pod's address", name, strings.Join(addresses, " "), other.object.Status.PodIP), next)
			}
		}
	}
}

func hasAddress(addresses []string, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return slices.Contains(addresses, ip.IP) }) ||
		slices.Contains(addresses, pod.Status.PodIP)
}
