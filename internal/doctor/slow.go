// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/local"
	"github.com/ml-dev-env/ml-dev-env/internal/env/racks"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

const (
	// nearMemory is the used part of the memory limit, without the cache of files.
	nearMemory = 0.9
	// littleRoom is the free part of a volume.
	littleRoom = 0.05
	// manyThrottled is the part of throttled periods.
	manyThrottled = 0.1
	// enoughPeriods are a minute of periods of 100 ms.
	enoughPeriods = 600
	// idle is the highest utilization of an idle GPU, in percent.
	idle = 10
)

// examineSlow has the findings about a slow training, except its network, and about faulty GPUs and volumes.
func (e *examination) examineSlow() {
	for _, n := range e.answering() {
		e.gpus(n)
		e.memory(n)
		e.volumes(n)
		e.cpus(n)
	}
	for _, j := range e.jobs {
		e.slowRanks(j)
		e.racks(j)
	}
	e.differing()
	e.unshared()
	e.idle()
}

func (e *examination) gpus(n *node) {
	f := n.facts
	leave := e.advice(fmt.Sprintf("let an administrator check the node (Xid in its kernel's log: oc debug node/%s -- chroot /host dmesg | "+
		"grep -i xid); until then: oc adm cordon %s", f.KubernetesNode, f.KubernetesNode),
		"look for Xid in the kernel's log: dmesg | grep -i xid; leave the GPU out by CUDA_VISIBLE_DEVICES")
	switch {
	case f.LostDevices():
		e.found(GPUFaulty, n.String(), "its GPUs cannot be read: "+f.GPUProblem, e.advice(fmt.Sprintf(
			"oc delete pod %s: a new pod on the same Kubernetes node may use its GPUs again", f.Pod), "restart the container"))
	case f.GPUProblem != "":
		e.found(GPUFaulty, n.String(), "its GPUs cannot be read: "+f.GPUProblem, leave)
	case len(f.GPUs) < f.GPUsExpected:
		e.found(fail.GPUMissing, n.String(), fmt.Sprintf("usable GPUs: %d, want %d", len(f.GPUs), f.GPUsExpected), leave).Flow = Hang
	}
	for _, gpu := range f.GPUs {
		which := fmt.Sprintf("GPU %d of %s", gpu.Index, n)
		if gpu.Fault != "" {
			e.found(GPUFaulty, which, fmt.Sprintf("%s (%s)", gpu.Fault, gpu.UUID), leave)
		}
		if len(gpu.Throttled) > 0 {
			e.found(GPUThrottled, which,
				fmt.Sprintf("throttled by %s at %d °C, %d%% busy: all ranks wait for the slowest", strings.Join(gpu.Throttled, " and "),
					gpu.Temperature, gpu.Utilization),
				e.execCommand(n, fmt.Sprintf("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i %d (heat comes from the node's cooling, a power "+
					"brake from its supply)", gpu.Index)))
		}
	}
}

func (e *examination) memory(n *node) {
	f := n.facts
	if used := f.MemoryUsed - f.MemoryCache; f.MemoryLimit > 0 && float64(used) > nearMemory*float64(f.MemoryLimit) {
		e.found(MemoryNearLimit, n.String(),
			fmt.Sprintf("its container uses %s of its limit of %s, without the cache of files: above the limit all its ranks are killed",
				humanize.Bytes(int64(used)), humanize.Bytes(int64(f.MemoryLimit))),
			e.advice("raise resources.limits.memory in the cluster file, or ", "")+"use fewer workers of data loaders; files in /dev/shm count too")
	}
	if room := f.SharedMemory; room.Size > 0 && float64(room.Free) < littleRoom*float64(room.Size) {
		e.found("SharedMemoryFull", n.String(), fmt.Sprintf("/dev/shm has %s free of %s", humanize.Bytes(int64(room.Free)),
			humanize.Bytes(int64(room.Size))),
			e.execCommand(n, "ls -lS /dev/shm (remove files of ended ranks; use fewer workers of data loaders)")).Level = fail.Suspicious
	}
}

func (e *examination) volumes(n *node) {
	for _, mount := range []struct {
		path   string
		volume agent.Volume
	}{{e.place(agent.Workspace), n.facts.Workspace}, {e.place(agent.Datasets), n.facts.Datasets}} {
		look := e.execCommand(n, fmt.Sprintf("sh -c 'df -h %s; timeout 60 du -xsh %s/* | sort -h | tail'", mount.path, mount.path))
		v := mount.volume
		switch {
		case v.Problem != "":
			e.found(VolumeUnusable, n.String(), mount.path+": "+v.Problem, look)
		// Trainings do not write into datasets.
		case mount.path != e.place(agent.Datasets) && v.Size > 0 && float64(v.Free) < littleRoom*float64(v.Size):
			f := e.found(VolumeFull, n.String(), fmt.Sprintf("%s has %s free of %s: a checkpoint without room ends the training",
				mount.path, humanize.Bytes(int64(v.Free)), humanize.Bytes(int64(v.Size))), look)
			if v.Free == 0 {
				f.Level, f.Flow = fail.Broken, Hang
			}
		}
	}
}

// place returns where a claim is mounted, or the folder in place of one.
func (e *examination) place(mounted string) string {
	if folder, err := local.Folder(); e.here && err == nil {
		return filepath.Join(folder, strings.TrimPrefix(mounted, agent.Workspace))
	}
	return mounted
}

func (e *examination) cpus(n *node) {
	if f := n.facts; f.CPUPeriods >= enoughPeriods && float64(f.CPUThrottled) >= manyThrottled*float64(f.CPUPeriods) {
		e.found(CPUThrottled, n.String(), fmt.Sprintf("its CPU limit throttled the container in %d%% of the periods since it started",
			100*f.CPUThrottled/f.CPUPeriods),
			e.advice("raise resources.limits.cpu in the cluster file, or ", "")+"use fewer workers of data loaders (and OMP_NUM_THREADS)")
	}
}

// differing reports nodes with different GPUs.
func (e *examination) differing() {
	var kinds, seen []string
	for _, n := range e.answering() {
		for _, gpu := range n.facts.GPUs {
			if kind := fmt.Sprintf("%s, driver %s", gpu.Model, gpu.Driver); !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
				seen = append(seen, fmt.Sprintf("%s on node %d", kind, n.number))
			}
		}
	}
	if len(kinds) > 1 {
		e.found(GPUsDiffer, "between the nodes", strings.Join(seen, "; ")+": all ranks wait for the slowest",
			e.advice("set gpus.type, or list nodes of one kind in nodes.gpu_nodes, in the cluster file",
				"choose GPUs of one kind by CUDA_VISIBLE_DEVICES"))
	}
}

// unshared reports nodes that mount one claim but do not see each other's files.
func (e *examination) unshared() {
	set := e.cluster.StatefulSet
	if set == nil || len(set.Spec.VolumeClaimTemplates) > 0 {
		return
	}
	var first *node
	for _, n := range e.answering() {
		switch {
		case n.facts.Workspace.ID == "":
		case first == nil:
			first = n
		case n.facts.Workspace.ID != first.facts.Workspace.ID:
			e.found(fail.StorageNotShared, n.String(), fmt.Sprintf("%s: it does not see the files of node %d, though both mount one claim",
				agent.Workspace, first.number),
				"check storage.class_rwx of the cluster file: its class must give one volume to all nodes")
		}
	}
}

// utilization returns "node 0: 99 98, node 1: 0 0", or "" if no GPU is known.
func (e *examination) utilization() string {
	var all []string
	for _, n := range e.answering() {
		if len(n.facts.GPUs) == 0 {
			continue
		}
		var busy []string
		for _, gpu := range n.facts.GPUs {
			busy = append(busy, fmt.Sprint(gpu.Utilization))
		}
		all = append(all, fmt.Sprintf("node %d: %s", n.number, strings.Join(busy, " ")))
	}
	return strings.Join(all, ", ")
}

// idle reports GPUs that are idle while a job runs. Writing a checkpoint looks the same.
func (e *examination) idle() {
	busy := slices.ContainsFunc(e.answering(), func(n *node) bool {
		return slices.ContainsFunc(n.facts.GPUs, func(g agent.GPU) bool { return g.Utilization > idle })
	})
	if slices.ContainsFunc(e.jobs, job.running) && e.utilization() != "" && !busy {
		e.found(GPUsIdle, "environment "+e.env.Name, "GPUs in percent: "+e.utilization()+": ranks load data, write a checkpoint, compile, or "+
			"wait in Python",
			"run the doctor again in a minute; then check the data loaders, and the speed of "+e.place(agent.Datasets)+": "+
				e.execCommand(e.nodes[0], "dd if="+e.place(agent.Datasets)+"/FILE of=/dev/null bs=4M count=256"))
	}
}

// racks reports a job whose ring crosses between racks more often than necessary.
func (e *examination) racks(j job) {
	if !j.running() {
		return
	}
	byRank := make([]string, j.spec().Nodes)
	for _, n := range e.answering() {
		if at := j.spec().Position(n.number); at >= 0 && at < len(byRank) && n.facts.Network != nil {
			byRank[at] = n.facts.Network.Rack
		}
	}
	if !slices.Contains(byRank, "") && racks.RankOrder(byRank) != nil {
		e.found(RacksInterleaved, j.displayName(),
			fmt.Sprintf("in the order of ranks the nodes are in racks %s: want nodes of a rack next to each other, so that a ring leaves each "+
				"rack once", strings.Join(byRank, ", ")),
			"start the training again, which orders the ranks by rack (nodes.rack_label or nodes.rack_pattern in the cluster file)")
	}
}
