// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// resumer is a way to train with trainer.py so that the training continues after a blow.
type resumer struct {
	name string
	// added has the lines of trainer.py that its user adds or changes, as pairs of an old and a new text.
	added [][2]string
	// start trains, and again continues a training that was stopped; RUN in them is the name of the run.
	start, again string

	// The blows are SIGTERM to the launcher with a second start at its end, and SIGKILL of a rank.
	stopped, killed struct {
		ended, repeated, next []float64
		blows                 int
	}
	// failures tells why the training did not continue.
	failures []string
}

// The blows fall after this step, within the next one. A step takes pace; trainer.py writes a checkpoint every 20 steps.
const struckAfter, pace = 30, 100 * time.Millisecond

// longest is how long a training may take with its blow; one that waits for ever has not continued.
const longest = 2 * time.Minute

// BenchmarkResume trains with the Trainer of transformers on two ranks of this machine in turns by mlenv run --local and by torchrun with
// the checkpoint that the Trainer itself saves at SIGTERM. The python3 in PATH needs torch and transformers.
func BenchmarkResume(b *testing.B) {
	versions, err := exec.CommandContext(b.Context(), "python3", "-c",
		"import torch, transformers; print(f'transformers {transformers.__version__}, torch {torch.__version__}')").Output()
	check(b, err)
	facts := append(report.Machine("the ranks and their launcher"), strings.TrimSpace(string(versions)))
	work, err := os.Getwd()
	check(b, err)
	b.Setenv("PATH", filepath.Join(work, "bin")+":"+os.Getenv("PATH"))
	b.Setenv("XDG_DATA_HOME", b.TempDir())
	b.Setenv("OMP_NUM_THREADS", "1")
	// Without the variable, restarted ranks look for each other at the addresses of the attempt before (pytorch/pytorch#135712): with
	// torch 2.15 and gloo no restart continues.
	const torchrun = "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 " +
		"python3 -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1 trainer.py"
	ways := []*resumer{
		{name: "mlenv run --local", start: "mlenv run . trainer.py --local --nodes=1 --ranks-per-node=2 --max-restarts=1 --run-name=RUN",
			again: "mlenv run --local --resume-from=RUN --run-name=RUN-again"},
		{name: "torchrun, with enable_jit_checkpoint", start: torchrun, again: torchrun, added: [][2]string{
			{"import json\n", "import glob\nimport json\n"},
			{`ddp_backend="gloo")`, `ddp_backend="gloo", enable_jit_checkpoint=True)`},
			{"trainer.train()", `trainer.train(resume_from_checkpoint=bool(glob.glob("out/checkpoint-*")))`},
		}},
	}
	for i := 0; b.Loop(); i++ {
		within := rand.N(pace) //nolint:gosec // any moment will do
		for turn := range ways {
			w := ways[(i+turn)%len(ways)]
			for _, blow := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
				check(b, w.strike(b.Context(), b.TempDir(), fmt.Sprintf("resume-%d-%d", i, blow), within, blow))
			}
		}
	}
	rows := [][]string{{"Trainer, " + report.When()}, {"lines of the script that its user changes"},
		{"SIGTERM to the launcher: seconds until it has ended"}, {"second starts that continued"}, {"steps repeated by a second start"},
		{"seconds from SIGTERM to the next new step, with a second start at once"}, {"SIGKILL of a rank: restarts that continued"},
		{"steps repeated by the restart"}, {"seconds from SIGKILL to the next new step"}}
	base := ways[0]
	for _, w := range ways {
		for i, cell := range []string{w.name, fmt.Sprint(len(w.added)), compared(w.stopped.ended, base.stopped.ended),
			fmt.Sprintf("%d of %d", len(w.stopped.next), w.stopped.blows), compared(w.stopped.repeated, w.stopped.repeated),
			compared(w.stopped.next, base.stopped.next), fmt.Sprintf("%d of %d", len(w.killed.next), w.killed.blows),
			compared(w.killed.repeated, w.killed.repeated), compared(w.killed.next, base.killed.next)} {
			rows[i] = append(rows[i], cell)
		}
		b.Log(strings.Join(w.failures, "\n"))
	}
	report.Page{Name: page, Target: "bench-resume"}.Print(b, "resume", rows, facts)
}

// strike trains in a new folder until the blow falls, and until the training has ended after it.
func (w *resumer) strike(ctx context.Context, folder, run string, within time.Duration, blow syscall.Signal) error {
	ctx, done := context.WithTimeout(ctx, longest)
	defer done()
	script, err := os.ReadFile("test/bench/testdata/trainer.py")
	if err != nil {
		return err
	}
	for _, line := range w.added {
		script = bytes.Replace(script, []byte(line[0]), []byte(line[1]), 1)
	}
	if err := os.WriteFile(filepath.Join(folder, "trainer.py"), script, 0o644); err != nil {
		return err
	}
	first, err := begin(ctx, folder, w.start, run)
	if err != nil {
		return err
	}
	old, err := first.await(func(s doneStep) bool { return s.Step == struckAfter })
	if err != nil {
		return err
	}
	time.Sleep(within)
	at, launch, results := time.Now(), first, &w.killed
	if blow == syscall.SIGKILL {
		rank := old[slices.IndexFunc(old, func(s doneStep) bool { return s.Rank == 1 })]
		err = syscall.Kill(rank.PID, blow)
	} else {
		results = &w.stopped
		if err := first.cmd.Process.Signal(blow); err != nil {
			return err
		}
		<-first.ended
		results.ended = append(results.ended, since(at))
		if old, err = first.steps(); err == nil {
			launch, err = begin(ctx, folder, w.again, run)
		}
	}
	if err != nil {
		return err
	}
	last := 0
	for _, s := range old {
		last = max(last, s.Step)
	}
	anew := func(s doneStep) bool {
		return !slices.ContainsFunc(old, func(o doneStep) bool { return o.PID == s.PID })
	}
	next := func(s doneStep) bool { return anew(s) && s.Step > last }
	steps, err := launch.await(next)
	if results.blows++; err != nil {
		w.failures = append(w.failures, fmt.Sprintf("%s, %s after step %d: %v", w.name, blow, last, err))
		return nil // it is a result
	}
	results.repeated = append(results.repeated, float64(last+1-steps[slices.IndexFunc(steps, anew)].Step))
	results.next = append(results.next, steps[slices.IndexFunc(steps, next)].Time-float64(at.UnixNano())/1e9)
	if err := <-launch.ended; err != nil {
		output, _ := os.ReadFile(strings.TrimSuffix(launch.notes, "steps") + "output")
		w.failures = append(w.failures, fmt.Sprintf("%s, %s after step %d: it continued, and ended with %v\n%s", w.name, blow, last, err, output))
	}
	return nil
}

// launch is a command that trains.
type launch struct {
	cmd   *exec.Cmd
	notes string
	ended chan error
}

// doneStep is a step that a rank has done, as trainer.py notes it.
type doneStep struct {
	Rank, PID, Step int
	Time            float64
}

func begin(ctx context.Context, folder, command, run string) (*launch, error) {
	args := strings.Fields(strings.ReplaceAll(command, "RUN", run))
	l := &launch{cmd: exec.CommandContext(ctx, args[0], args[1:]...), notes: folder + "-steps", ended: make(chan error, 1)}
	output, err := os.Create(folder + "-output") // a pipe could outlive the command
	if err != nil {
		return nil, err
	}
	defer output.Close()
	l.cmd.Dir, l.cmd.Env, l.cmd.Stdout, l.cmd.Stderr = folder, append(os.Environ(), "STEPS="+l.notes), output, output
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { l.ended <- l.cmd.Wait() }()
	return l, nil
}

// await waits for a step, and returns all steps until then.
func (l *launch) await(wanted func(doneStep) bool) ([]doneStep, error) {
	for {
		steps, err := l.steps()
		if err != nil || slices.ContainsFunc(steps, wanted) {
			return steps, err
		}
		select {
		case err := <-l.ended:
			output, _ := os.ReadFile(strings.TrimSuffix(l.notes, "steps") + "output")
			return nil, fmt.Errorf("%s ended too early: %w\n%s", l.cmd, err, output)
		case <-time.After(pace / 20):
		}
	}
}

// steps returns the steps that ranks have done until now.
func (l *launch) steps() (steps []doneStep, err error) {
	content, err := os.ReadFile(l.notes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for decoder := json.NewDecoder(bytes.NewReader(content)); err == nil && decoder.More(); {
		var s doneStep
		err = decoder.Decode(&s)
		steps = append(steps, s)
	}
	return steps, err
}
