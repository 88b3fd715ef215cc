// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Bounds of a request for stacks.
const (
	// stackTime is how long the agent watches what a rank uses.
	stackTime = 2 * time.Second
	// spyTime bounds a py-spy, which reads the stacks of a rank.
	spyTime = 20 * time.Second
	// maxOutput bounds what py-spy and the reader of flight records print, in bytes.
	maxOutput = 4 << 20
	// spies is how many py-spy run at the same time.
	spies = 8
	// maxThreads bounds the threads of a rank in the record.
	maxThreads = 200
	// maxWorkers bounds the further workers of a launcher inside a rank whose stacks are in the record.
	maxWorkers = 15
)

// stacks answers what the node's live ranks do, and writes their stacks into the record.
func (s *Server) stacks(w http.ResponseWriter, r *http.Request) error {
	status, j, err := s.findJob(r)
	if err != nil {
		return err
	}
	all := []agent.RankActivity{}
	if j == nil || j.isOver() {
		return answer(w, all)
	}
	var live []agent.RankStatus
	for _, rank := range status.Ranks {
		if rank.Ended.IsZero() && rank.PID > 0 {
			live = append(live, rank)
		}
	}
	if _, err = os.Stat(j.own.spy); err != nil {
		err = errors.New(j.own.noSpy)
	}
	all = make([]agent.RankActivity, len(live))
	turns := make(chan struct{}, spies)
	var group sync.WaitGroup
	var collectives map[int][]agent.Collective
	group.Go(func() { collectives = j.collectives(r.Context(), live) })
	for i, rank := range live {
		group.Go(func() {
			all[i] = j.activity(r.Context(), rank, err, turns)
		})
	}
	group.Wait()
	for i := range all {
		all[i].Collectives = collectives[all[i].Rank]
	}
	return answer(w, all)
}

// activity returns what one rank does. spyErr is why there is no py-spy.
func (j *job) activity(ctx context.Context, rank agent.RankStatus, spyErr error, turns chan struct{}) agent.RankActivity {
	began := time.Now()
	pid, others, tree := pythonOf(rank.PID)
	ownBefore, childrenBefore, ioBefore := used(pid, tree)
	before := cpuOf(tree)
	doing := agent.RankActivity{Rank: rank.Rank, Node: rank.Node}
	var text bytes.Buffer
	var threads []pythonThread
	err := spyErr
	if err == nil {
		turns <- struct{}{}
		threads, err = j.dump(ctx, pid)
		<-turns
	}
	if err != nil {
		doing.Problem = err.Error()
		j.unread.Store(rank.Rank, true)
	}
	sleepContext(ctx, time.Until(began.Add(stackTime)))
	own, children, ioAfter := used(pid, tree)
	took := time.Since(began)
	doing.CPU = (own - ownBefore).Seconds() / took.Seconds()
	doing.ChildCPU = max(0, (children-childrenBefore).Seconds()/took.Seconds()) // a child may have ended
	doing.Child = busiest(pid, before, cpuOf(tree))
	doing.IO, doing.AllIO = max(0, ioAfter-ioBefore), ioAfter
	main := readThread(pid, pid)
	doing.State, doing.Waits = main.state, main.waits

	fmt.Fprintf(&text, "rank %d on node %d, process %d, at %s\nit uses %.2f processors, its %d descendants %.2f; all of them read and wrote "+
		"%d bytes in %s\n",
		rank.Rank, rank.Node, pid, began.UTC().Format(time.RFC3339), doing.CPU, len(tree)-1, doing.ChildCPU, doing.IO,
		took.Round(time.Millisecond))
	if doing.Problem != "" {
		fmt.Fprintf(&text, "no stacks of Python: %s; a rank that is stopped for a hang prints them at the end of rank-%d.log\n", doing.Problem,
			rank.Rank)
	}
	doing.Frames = writeThreads(&text, pid, threads)
	if err == nil {
		j.writeWorkers(ctx, &text, others, turns)
	}
	if slices.ContainsFunc(doing.Frames, func(f agent.Frame) bool { return strings.HasSuffix(f.File, "/torch/utils/file_baton.py") }) {
		doing.Lock = oldestLock(j.extensions)
	}
	text.WriteString("\nthreads, as the kernel has them:\n")
	tasks, _ := os.ReadDir(procPath(pid, "task"))
	for _, task := range tasks[:min(len(tasks), maxThreads)] {
		tid, _ := strconv.Atoi(task.Name())
		t := readThread(pid, tid)
		fmt.Fprintf(&text, "    %d %s: %s %s\n%s", tid, t.name, t.state, t.waits, t.stack)
	}
	if err := record.WriteFile(j.dir.Stacks(rank.Rank), text.Bytes()); err != nil {
		j.log.Warn("Recording the stacks of a rank failed.", "rank", rank.Rank, "error", err)
	}
	return doing
}

// writeThreads writes the stacks of a process's threads, and returns the main thread's frames.
func writeThreads(text io.Writer, pid int, threads []pythonThread) (main []agent.Frame) {
	folder, _ := os.Readlink(procPath(pid, "cwd"))
	for _, t := range threads {
		fmt.Fprintf(text, "\nthread %d %q\n", t.ID, t.Name)
		for i, f := range t.Frames {
			frame := agent.Frame{Function: f.Name, File: strings.TrimPrefix(f.File, folder+"/"), Line: f.Line}
			fmt.Fprintf(text, "    %s (%s:%d)\n", frame.Function, frame.File, frame.Line)
			if t.ID == pid && i < agent.MaxFrames {
				main = append(main, frame)
			}
		}
	}
	return main
}

// writeWorkers writes the stacks of the other workers that a launcher inside the rank has started.
func (j *job) writeWorkers(ctx context.Context, text io.Writer, workers []int, turns chan struct{}) {
	for _, pid := range workers[:min(len(workers), maxWorkers)] {
		turns <- struct{}{}
		threads, err := j.dump(ctx, pid)
		<-turns
		fmt.Fprintf(text, "\nprocess %d, another worker of the rank's launcher\n", pid)
		if err != nil {
			fmt.Fprintf(text, "no stacks of Python: %s\n", err)
		}
		writeThreads(text, pid, threads)
	}
}

// pythonOf returns the process of a rank that trains, and the rank's process with its descendants. A rank may be a shell that runs
// Python, or a launcher, such as torchrun or accelerate launch, that starts workers: they have the variable RANK, which the launcher
// itself has not. If nothing runs Python, it is the rank's own process.
func pythonOf(pid int) (python int, others, tree []int) {
	tree = append([]int{pid}, slices.Sorted(maps.Keys(descendants(processTable(), pid)))...)
	var all, ranks []process
	for _, p := range tree {
		program, err := os.Readlink(procPath(p, "exe"))
		found, ok := readProcess(p)
		if err != nil || !ok || !strings.HasPrefix(filepath.Base(program), "python") {
			continue
		}
		all = append(all, found)
		if bytes.Contains(environOf(p), []byte("\x00RANK=")) {
			ranks = append(ranks, found)
		}
	}
	first, workers := topmost(all), topmost(ranks)
	switch {
	case len(first) == 0:
		return pid, nil, tree
	case len(workers) == 0 || workers[0] == first[0]: // the others are helpers of it, such as a DataLoader's
		return first[0], nil, tree
	}
	return workers[0], workers[1:], tree
}

// topmost returns those of the processes that none of the others has started, without regard to their order: IDs begin again at the end.
func topmost(all []process) (pids []int) {
	for _, p := range all {
		if !slices.ContainsFunc(all, func(other process) bool { return other.pid == p.parent }) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// cpuOf returns the processor time of each process that lives.
func cpuOf(pids []int) map[int]time.Duration {
	all := map[int]time.Duration{}
	for _, pid := range pids {
		if found, ok := readProcess(pid); ok {
			all[pid] = found.cpu
		}
	}
	return all
}

// busiest returns the name of the process below pid that used processors the most, "" for none that runs another program than Python.
func busiest(pid int, before, after map[int]time.Duration) string {
	delete(after, pid)
	most, used := 0, time.Duration(0)
	for child, cpu := range after {
		if spent := cpu - before[child]; spent > used {
			most, used = child, spent
		}
	}
	name, _ := os.ReadFile(procPath(most, "comm"))
	if program, _ := os.Readlink(procPath(most, "exe")); most == 0 || strings.HasPrefix(filepath.Base(program), "python") {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// used returns the processor time of a process and of the rest of its tree, and what the tree has read and written.
func used(pid int, tree []int) (own, others time.Duration, moved agent.Bytes) {
	for _, p := range tree {
		found, _ := readProcess(p)
		if p == pid {
			own = found.cpu
		} else {
			others += found.cpu
		}
		content, _ := os.ReadFile(procPath(p, "io"))
		for line := range strings.Lines(string(content)) {
			// read_bytes has what is read through mappings, rchar what comes from the cache.
			if key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); slices.Contains([]string{"rchar", "wchar", "read_bytes"}, key) {
				n, _ := strconv.ParseInt(value, 10, 64)
				moved += agent.Bytes(n)
			}
		}
	}
	return own, others, moved
}

// kernelThread is a thread as the kernel has it.
type kernelThread struct{ name, state, waits, stack string }

// readThread reads what this user may see of a thread; only root may see its stack.
func readThread(pid, tid int) (t kernelThread) {
	read := func(file string) string {
		content, _ := os.ReadFile(procPath(pid, fmt.Sprintf("task/%d/%s", tid, file)))
		return string(content)
	}
	t.name = strings.TrimSpace(read("comm"))
	if _, state, ok := strings.Cut(read("status"), "\nState:\t"); ok {
		t.state = state[:min(1, len(state))]
	}
	if t.waits = read("wchan"); t.waits == "0" {
		t.waits = ""
	}
	t.stack = read("stack")
	return t
}

// pythonThread is a thread in the answer of py-spy.
type pythonThread struct {
	ID     int    `json:"os_thread_id"`
	Name   string `json:"thread_name"`
	Frames []struct {
		Name string `json:"name"`
		File string `json:"filename"`
		Line int    `json:"line"`
	} `json:"frames"`
}

// dump asks py-spy for the stacks of a process. py-spy reads its memory without stopping it: it cannot stop a process that a
// signal has stopped, and if it is killed while it has stopped one, that one stays so. A process that runs meanwhile may
// change under its eyes, so it tries again.
func (j *job) dump(ctx context.Context, pid int) (threads []pythonThread, err error) {
	ctx, cancel := context.WithTimeout(ctx, spyTime)
	defer cancel()
	for range 3 {
		if err = j.runJSON(ctx, &threads, j.own.spy, "dump", "--nonblocking", "--full-filenames", "--json", "--pid",
			strconv.Itoa(pid)); err == nil {
			return threads, nil
		}
	}
	return nil, err
}

// ownPrograms are those that the agent itself runs for a job, by their paths: what a rank can change must not choose them.
type ownPrograms struct {
	// agent is the agent's own program, the keeper of the others.
	agent, spy string
	// path is PATH of the container.
	path string
	// noSpy is why there is no py-spy, if there is none.
	noSpy string
}

func (c Config) ownPrograms() ownPrograms {
	path, _ := agent.Variable(c.Environ, "PATH")
	own := ownPrograms{agent: c.Program, spy: filepath.Join(c.Paths.Home, "bin", agent.PySpy), path: path,
		noSpy: "the agent's image has no py-spy"}
	if c.Local {
		own.noSpy = "there is no py-spy in PATH; install it with: pip install py-spy"
	}
	return own
}

// runJSON runs a program under the job's keeper, and decodes what it prints.
func (j *job) runJSON(ctx context.Context, value any, program string, args ...string) error {
	var output, problem boundedOutput
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = &output, &problem
	exit, err := j.processes.runKept(ctx, j.own.agent, command)
	if err == nil && exit != (agent.Exit{}) {
		err = fmt.Errorf("it ended with exit code %d %s", exit.Code, cmp.Or(exit.Signal, exit.Error))
	}
	if err == nil {
		err = json.Unmarshal(output, value)
	}
	if err != nil {
		return fmt.Errorf("running %s: %w: %s", filepath.Base(program), err, humanize.OneLine(string(problem), 300))
	}
	return nil
}

// boundedOutput takes at most maxOutput bytes.
type boundedOutput []byte

func (b *boundedOutput) Write(p []byte) (int, error) {
	if len(*b)+len(p) > maxOutput {
		return 0, errors.New("it prints too much")
	}
	*b = append(*b, p...)
	return len(p), nil
}
