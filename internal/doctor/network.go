// SPDX-License-Identifier: Apache-2.0

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

func (e *examination) network() {
	for _, j := range e.jobs {
		e.printed(j)
	}
	e.devices()
	e.settings()
	e.unusedRails()
}

// printed has the findings in NCCL's logs of a job. A job that succeeded has recovered from its errors.
func (e *examination) printed(j job) {
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
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		e.fromNCCL(j, byReason[reason])
	}
}

// fromNCCL joins the findings with one reason, because many ranks report the same failure of the network.
func (e *examination) fromNCCL(j job, same []nccl.Finding) {
	first := same[0]
	var hosts []string
	for _, f := range same {
		if host := e.host(f.Host); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	evidence := fmt.Sprintf("%s; NCCL in %s: %s", first.Cause, j.displayName(), first.Seen)
	if first.Device != "" && !strings.Contains(first.Seen, first.Device) {
		evidence += " (" + first.Device + ")"
	}
	if more := len(same) - 1; more > 0 {
		evidence += fmt.Sprintf(" (and %s like it)", humanize.Count(more, "finding"))
	}
	f := e.found(first.Reason, strings.Join(hosts, ", "), evidence, first.Next)
	if first.Consequence {
		f.Level = fail.Note
	}
}

// host returns the node with that host name, which is its pod's name.
func (e *examination) host(name string) string {
	for _, n := range e.nodes {
		if n.pod == name {
			return n.String()
		}
	}
	return cmp.Or(name, "a rank")
}

// wanted returns the transport and the devices that a node's part of a job should use.
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

// detected returns the devices and the numbers of the nodes that answer.
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

// settingsInUse returns the network settings that the answering nodes got.
func (e *examination) settingsInUse() network.Settings {
	var facts []agent.Facts
	for _, n := range e.answering() {
		facts = append(facts, *n.facts)
	}
	return network.SettingsOf(facts)
}

// devices has the findings about the RDMA devices. Mode tcp needs none.
func (e *examination) devices() {
	if !e.rdmaWanted() {
		return
	}
	add := func(f fail.Finding, object, command string) {
		found := e.found(f.Reason, object, f.Seen, cmp.Or(f.Next, fmt.Sprintf("%s --name=%s -n %s", command, e.env.Name, e.env.Namespace)))
		if found.Level = f.Level; f.Level == fail.Degraded {
			found.Level = fail.Suspicious
		}
	}
	for _, n := range e.nodes {
		if n.rdma != nil {
			for _, f := range slices.Concat(n.rdma.Findings, n.rdma.OtherMTUs(e.settingsInUse().Expected.MTU)) {
				add(f, n.String(), fmt.Sprintf("mlenv rdma %d", n.number))
			}
		}
	}
	facts, numbers := e.detected()
	for _, f := range rdma.CompareSome(facts, numbers) {
		add(f, "between the nodes", "mlenv rdma")
	}
}

// settings compares NCCL's variables on the nodes with those for the current devices: maintenance renames devices, and
// rails lose their routes to each other.
func (e *examination) settings() {
	if !e.rdmaWanted() || !e.allDetected() {
		return
	}
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
			name, next := SettingsStale, "start the training again, which sets the variables; if it does not help, the image or the nccl block of "+
				"the cluster file sets them"
			if v.Name == "NCCL_CROSS_NIC" && v.Value == "0" {
				name = CrossNIC
			}
			e.found(name, n.String(), fmt.Sprintf("%s is %s: want %s: %s", v.Name, cmp.Or(has, "unset"), cmp.Or(v.Value, "unset"), v.Reason), next)
		}
	}
}

// unusedRails reports rails that mode tcp does not use.
func (e *examination) unusedRails() {
	facts, numbers := e.detected()
	without := func(f rdma.Facts) bool { return len(f.Rails()) == 0 }
	if e.networkMode() == "" || e.rdmaWanted() || len(facts) == 0 || slices.ContainsFunc(facts, without) {
		return
	}
	e.found(RDMAUnused, "environment "+e.env.Name,
		fmt.Sprintf("its mode is %s, but each node that answers has usable RDMA devices (node %d: %s), which should reach %s",
			e.networkMode(), numbers[0], humanize.Count(len(facts[0].Rails()), "rail"), rdma.ExpectedBandwidth(facts, e.settingsInUse().Expected)),
		"provision it with --mode=rdma; in mode auto the run's log and receipt explain why it is tcp")
}
