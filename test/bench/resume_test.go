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
	// script is what its user changes in trainer.py for that.
	script edits
	// begin trains with the trainer.py of a folder. run is a new name.
	begin func(ctx context.Context, folder, run string) (*launch, error)
	// stop and kill strike rank 1, and return the launch that is to continue.
	stop, kill func(ctx context.Context, l *launch, rank doneStep) (*launch, error)
	// remove deletes what is left of a run, nil for nothing.
	remove func(ctx context.Context, run string) error

	// scriptLines and yamlLines are the lines that the user changes so that the training continues.
	scriptLines, yamlLines int
	stopped, killed        blows
	// failures tells why the training did not continue.
	failures []string
}

// blows has what blows of one kind cost if the training continued: the steps repeated, and the seconds until the next new one.
type blows struct {
	struck         int
	repeated, next []float64
}

// edits are pairs of an old and a new text.
type edits [][2]string

// apply returns the changed text, and how many of its lines are new.
func (e edits) apply(text string) (changed string, lines int, err error) {
	old := strings.Split(text, "\n")
	for _, pair := range e {
		if !strings.Contains(text, pair[0]) {
			return "", 0, fmt.Errorf("changing a file: there is no %q in\n%s", pair[0], text)
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if i := slices.Index(old, line); i >= 0 {
			old = slices.Delete(old, i, i+1)
		} else {
			lines++
		}
	}
	return text, lines, nil
}

// With resumes the Trainer continues with its newest checkpoint, and with saves it saves one at SIGTERM.
var (
	resumes = edits{
		{"import json\n", "import glob\nimport json\n"},
		{"trainer.train()", `trainer.train(resume_from_checkpoint=bool(glob.glob("out/checkpoint-*")))`},
	}
	saves = edits{{`ddp_backend="gloo")`, `ddp_backend="gloo", enable_jit_checkpoint=True)`}}
)

// The blows fall after this step, within the next one. A step takes pace; trainer.py writes a checkpoint every 20 steps.
const struckAfter, pace = 30, 100 * time.Millisecond

// longest is how long a training may take with its blow; one that waits for ever has not continued.
const longest = 3 * time.Minute

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
	rows := strikeInTurns(b, "SIGTERM and a second start", "SIGKILL of a rank",
		here("mlenv run --local", "mlenv run . trainer.py --local --nodes=1 --ranks-per-node=2 --max-restarts=1 --run-name=RUN",
			"mlenv run --local --resume-from=RUN --run-name=RUN-again", nil),
		here("torchrun, with enable_jit_checkpoint", torchrun, torchrun, slices.Concat(resumes, saves)))
	report.Page{Name: page, Target: "bench-resume"}.Print(b, "resume", rows, facts)
}

// here trains on this machine with the command start, and with again if SIGTERM has ended it. RUN in them is the name of the run.
func here(name, start, again string, script edits) *resumer {
	begin := func(ctx context.Context, command, folder, run string) (*launch, error) {
		l := &launch{run: run, folder: folder, notes: folder + "-steps"}
		return l, l.start(ctx, strings.Fields(strings.ReplaceAll(command, "RUN", run))...)
	}
	return &resumer{name: name, script: script,
		begin: func(ctx context.Context, folder, run string) (*launch, error) { return begin(ctx, start, folder, run) },
		stop: func(ctx context.Context, l *launch, _ doneStep) (*launch, error) {
			if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				return nil, err
			}
			<-l.ended
			return begin(ctx, again, l.folder, l.run)
		},
		kill: func(_ context.Context, l *launch, rank doneStep) (*launch, error) {
			return l, syscall.Kill(rank.PID, syscall.SIGKILL)
		},
	}
}

// strikeInTurns stops and kills trainings of each way, and returns the table. stop and kill describe the blows.
func strikeInTurns(b *testing.B, stop, kill string, ways ...*resumer) [][]string {
	b.Helper()
	for i := 0; b.Loop(); i++ {
		within := rand.N(pace) //nolint:gosec // any moment will do
		for turn := range ways {
			number := (i + turn) % len(ways)
			w, run := ways[number], fmt.Sprintf("resume-%d-%d", number, i)
			check(b, w.strike(b.Context(), b.TempDir(), run+"-stopped", within, w.stop, &w.stopped))
			check(b, w.strike(b.Context(), b.TempDir(), run+"-killed", within, w.kill, &w.killed))
		}
	}
	rows := [][]string{{"Trainer, " + report.When()}, {"lines of script + YAML that its user changes"}}
	for _, blow := range []string{stop, kill} {
		rows = append(rows, []string{blow + ": steps repeated"}, []string{blow + ": seconds until the next new step"})
	}
	for _, w := range ways {
		column := []string{w.name, fmt.Sprintf("%d + %d", w.scriptLines, w.yamlLines)}
		column = append(column, w.stopped.cells(ways[0].stopped)...)
		for i, cell := range append(column, w.killed.cells(ways[0].killed)...) {
			rows[i] = append(rows[i], cell)
		}
		b.Log(strings.Join(w.failures, "\n"))
	}
	return rows
}

// cells returns cells of a column, with the ratio to those of another way.
func (r blows) cells(other blows) []string {
	repeated, next := "-", compared(r.next, other.next)
	if len(r.next) > 0 {
		repeated = fmt.Sprintf("%.0f to %.0f", slices.Min(r.repeated), slices.Max(r.repeated))
	}
	if len(r.next) < r.struck {
		next += fmt.Sprintf("; %d of %d continued", len(r.next), r.struck)
	}
	return []string{repeated, next}
}

// strike trains in a new folder until the blow falls, and until the training has ended after it.
func (w *resumer) strike(ctx context.Context, folder, run string, within time.Duration,
	blow func(context.Context, *launch, doneStep) (*launch, error), results *blows) (err error) {
	script, err := os.ReadFile("test/bench/testdata/trainer.py")
	if err != nil {
		return err
	}
	changed, lines, err := w.script.apply(string(script))
	if err != nil {
		return err
	}
	w.scriptLines = lines
	if err := os.WriteFile(filepath.Join(folder, "trainer.py"), []byte(changed), 0o644); err != nil {
		return err
	}
	if w.remove != nil {
		defer func() { err = errors.Join(err, w.remove(ctx, run)) }()
	}
	bounded, done := context.WithTimeout(ctx, longest)
	defer done()
	l, err := w.begin(bounded, folder, run)
	if err != nil {
		return err
	}
	old, err := l.await(func(steps []doneStep) bool {
		return slices.ContainsFunc(steps, func(s doneStep) bool { return s.Step == struckAfter })
	})
	if err != nil {
		return err
	}
	time.Sleep(within)
	at := time.Now()
	if l, err = blow(bounded, l, old[slices.IndexFunc(old, func(s doneStep) bool { return s.Rank == 1 })]); err != nil {
		return err
	}
	var last, first, next doneStep
	_, err = l.await(func(steps []doneStep) bool {
		last, first, next = continuation(steps, old)
		return next.Step > 0
	})
	if results.struck++; err != nil {
		w.failures = append(w.failures, fmt.Sprintf("%s, %s after step %d: %v", w.name, run, last.Step, err))
		return nil // it is a result
	}
	results.repeated = append(results.repeated, float64(last.Step+1-first.Step))
	results.next = append(results.next, next.Time-float64(at.UnixNano())/1e9)
	if err := <-l.ended; err != nil {
		w.failures = append(w.failures, fmt.Sprintf("%s, %s after step %d: it continued, and ended with %v\n%s", w.name, run, last.Step, err,
			l.output()))
	}
	return nil
}

// continuation returns the last step of the processes that did the old ones, and of other processes the first step and the first new one,
// with number 0 if there is none yet.
func continuation(steps, old []doneStep) (last, first, next doneStep) {
	anew := slices.DeleteFunc(slices.Clone(steps), func(s doneStep) bool {
		isOld := slices.ContainsFunc(old, func(o doneStep) bool { return o.Began == s.Began })
		if isOld && s.Step > last.Step {
			last = s
		}
		return isOld
	})
	for _, s := range anew {
		if first.Step == 0 {
			first = s
		}
		if s.Step > last.Step {
			return last, first, s
		}
	}
	return last, first, doneStep{}
}

// launch is a command that trains.
type launch struct {
	run, folder string
	// notes is the file with the steps.
	notes string
	cmd   *exec.Cmd
	ended chan error
}

// doneStep is a step that a rank has done, as trainer.py notes it. Began is the time at which its process began.
type doneStep struct {
	Rank, PID, Step int
	Began, Time     float64
}

// start runs the command in the folder.
func (l *launch) start(ctx context.Context, args ...string) error {
	l.cmd, l.ended = exec.CommandContext(ctx, args[0], args[1:]...), make(chan error, 1)
	output, err := os.Create(l.folder + "-output") // a pipe could outlive the command
	if err != nil {
		return err
	}
	defer output.Close()
	l.cmd.Dir, l.cmd.Env, l.cmd.Stdout, l.cmd.Stderr = l.folder, append(os.Environ(), "STEPS="+l.notes), output, output
	// A launcher that is killed leaves its ranks.
	l.cmd.Cancel, l.cmd.WaitDelay = func() error { return l.cmd.Process.Signal(syscall.SIGTERM) }, time.Minute
	if err := l.cmd.Start(); err != nil {
		return err
	}
	go func() { l.ended <- l.cmd.Wait() }()
	return nil
}

// output returns what the command has printed.
func (l *launch) output() []byte {
	output, _ := os.ReadFile(l.folder + "-output") // it is only shown
	return output
}

// await waits for steps, and returns all steps until then.
func (l *launch) await(wanted func([]doneStep) bool) ([]doneStep, error) {
	for {
		steps, err := l.steps()
		if err != nil || wanted(steps) {
			return steps, err
		}
		select {
		case err := <-l.ended:
			return nil, fmt.Errorf("%s ended too early: %w\n%s", l.cmd, err, l.output())
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
