package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/network"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

func (e *examination) network() []Finding {
	var all []Finding
	for _, j := range e.jobs {
		all = append(all, e.printed(j)...)
	}
	return slices.Concat(all, e.devices(), e.settings(), e.unusedRails())
}

// printed has the findings in NCCL's logs of a job. A job that succeeded has recovered from its errors.
func (e *examination) printed(j job) []Finding {
	var summaries []nccl.Summary
	var against []nccl.Finding
	for _, status := range j.statuses {
		if status.NCCL == nil {
			continue
		}
		summaries = append(summaries, *status.NCCL)
		// Each node has its own settings and devices.
		against = append(against, status.NCCL.Against(e.wanted(status))...)
	}
	printed := against
	if !j.succeeded() {
		printed = slices.Concat(nccl.Merge(summaries...).Findings, against)
	}
	byReason := map[fail.Reason][]nccl.Finding{}
	for _, f := range printed {
		byReason[f.Reason] = append(byReason[f.Reason], f)
	}
	var all []Finding
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		all = append(all, e.fromNCCL(j, byReason[reason]))
	}
	return all
}

// fromNCCL joins the findings with one reason, because many ranks report the same failure of the network.
func (e *examination) fromNCCL(j job, same []nccl.Finding) Finding {
	first := same[0]
	var hosts []string
	for _, f := range same {
		if host := e.host(f.Host); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	evidence := fmt.Sprintf("%s; NCCL in %s: %s", first.Cause, j.title(), first.Seen)
	if first.Device != "" && !strings.Contains(first.Seen, first.Device) {
		evidence += " (" + first.Device + ")"
	}
	if more := len(same) - 1; more > 0 {
		evidence += fmt.Sprintf(" (and %s like it)", humanize.Count(more, "finding"))
	}
	f := newFinding(first.Reason, strings.Join(hosts, ", "), evidence, first.Next)
	if first.Consequence {
		f = f.as(fail.Note)
	}
	return f
}

// host is the node with that host name, which is its pod's name.
func (e *examination) host(name string) string {
	for _, n := range e.nodes {
		if n.pod == name {
			return n.String()
		}
	}
	return cmp.Or(name, "a rank")
}

// wanted is the transport and the devices that a node's part of a job should use.
func (e *examination) wanted(status agent.JobStatus) nccl.Wanted {
	n := e.nodes[status.Node]
	var wanted nccl.Wanted
	if n.facts != nil {
		wanted.Environment = maps.Clone(n.facts.Environment)
		maps.Copy(wanted.Environment, status.Spec.Env)
	}
	if !e.rdmaWanted() {
		return wanted
	}
	wanted.Transport = nccl.RDMAHost
	if n.facts != nil && len(n.facts.GPUs) > 0 {
		wanted.Transport = nccl.RDMAGPU
	}
	if n.rdma != nil && e.allDetected() {
		// The node's devices on rails that all nodes have.
		hca := e.plan(n).Environment()["NCCL_IB_HCA"]
		var names []string
		for name := range strings.SplitSeq(strings.TrimPrefix(hca, "="), ",") {
			name, _, _ = strings.Cut(name, ":")
			if name != "" {
				names = append(names, name)
			}
		}
		wanted.Devices = map[string][]string{n.pod: names}
	}
	return wanted
}

// allDetected reports whether the devices of all nodes are known, which NCCL's settings depend on.
func (e *examination) allDetected() bool {
	return !slices.ContainsFunc(e.nodes, func(n *node) bool { return n.rdma == nil })
}

// detected are the devices and the numbers of the nodes that answer.
func (e *examination) detected() (all []rdma.Facts, numbers []int) {
	for _, n := range e.nodes {
		if n.rdma != nil {
			all, numbers = append(all, *n.rdma), append(numbers, n.number)
		}
	}
	return all, numbers
}

func (e *examination) plan(n *node) rdma.Plan {
	all, _ := e.detected()
	told := e.settingsInUse()
	return rdma.NewPlan(all, n.number, told.Expected, told.Forced)
}

// settingsInUse are the network settings that the answering nodes got.
func (e *examination) settingsInUse() network.Settings {
	var facts []agent.Facts
	for _, n := range e.answering() {
		facts = append(facts, *n.facts)
	}
	return network.SettingsOf(facts)
}

// devices has the findings about the RDMA devices. Mode tcp needs none.
func (e *examination) devices() []Finding {
	if !e.rdmaWanted() {
		return nil
	}
	var all []Finding
	show := func(node string) string {
		return fmt.Sprintf("mlenv rdma %s --name=%s -n %s", node, e.name, e.namespace)
	}
	for _, n := range e.nodes {
		if n.rdma == nil {
			continue
		}
		for _, f := range n.rdma.Findings {
			all = append(all, fromRDMA(f, n.String(), show(fmt.Sprint(n.number))))
		}
	}
	facts, numbers := e.detected()
	for _, f := range rdma.CompareSome(facts, numbers) {
		all = append(all, fromRDMA(f, "between the nodes", show("")))
	}
	return all
}

func fromRDMA(f fail.Finding, object, show string) Finding {
	level := f.Level
	if level == fail.Degraded {
		level = fail.Suspicious
	}
	return newFinding(f.Reason, object, f.Seen, cmp.Or(f.Next, strings.Join(strings.Fields(show), " "))).as(level)
}

// settings compares NCCL's variables on the nodes with those for the current devices: maintenance renames devices, and
// rails lose their routes to each other.
func (e *examination) settings() []Finding {
	if !e.rdmaWanted() || !e.allDetected() {
		return nil
	}
	var all []Finding
	for _, n := range e.answering() {
		// A node without settings gets them before a job starts.
		if n.facts.Network == nil {
			continue
		}
		for _, v := range e.plan(n).Variables {
			has := n.facts.Environment[v.Name]
			if has == v.Value {
				continue
			}
			name, next := SettingsStale, "start the training again, which sets the variables; if it does not help, the image or the nccl block of the cluster file sets them"
			if v.Name == "NCCL_CROSS_NIC" && v.Value == "0" {
				name = CrossNIC
			}
			all = append(all, newFinding(name, n.String(), fmt.Sprintf("%s is %s: want %s: %s", v.Name, orUnset(has), orUnset(v.Value), v.Reason), next))
		}
	}
	return all
}

func orUnset(value string) string { return cmp.Or(value, "unset") }

// unusedRails is about rails that mode tcp does not use.
func (e *examination) unusedRails() []Finding {
	facts, numbers := e.detected()
	if e.mode() == "" || e.rdmaWanted() || len(facts) == 0 {
		return nil
	}
	for _, f := range facts {
		if len(f.Rails()) == 0 {
			return nil
		}
	}
	return []Finding{newFinding(RDMAUnused, "environment "+e.name,
		fmt.Sprintf("its mode is %s, but each node that answers has usable RDMA devices (node %d: %s), which should reach %s", e.mode(), numbers[0], humanize.Count(len(facts[0].Rails()), "rail"), rdma.ExpectedBandwidth(facts, e.settingsInUse().Expected)),
		"provision it with --mode=rdma; in mode auto the run's log and receipt explain why it is tcp")}
}
