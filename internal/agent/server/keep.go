// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
)

// runKept runs a program that the agent itself needs for a job, such as py-spy, as the ranks run: under a keeper, which is the agent's own
// program. When keep returns, no process is left that the program has started. It reports how the program ended. The context must end.
func (p *processes) runKept(ctx context.Context, keeper string, command *exec.Cmd) (agent.Exit, error) {
	kept := exec.Command(keeper, slices.Concat([]string{"launch", "--"}, command.Args)...)
	kept.Dir, kept.Stdout, kept.Stderr = command.Dir, command.Stdout, command.Stderr
	kept.Env = append(command.Environ(), rank.RunDirVariable+"="+p.record, rank.NodeVariable+"="+strconv.Itoa(p.node))
	kept.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kept.WaitDelay = time.Second
	reader, writer, err := os.Pipe()
	if err != nil {
		return agent.Exit{}, err
	}
	defer reader.Close()
	kept.ExtraFiles = []*os.File{writer}
	err = errors.Join(p.startKept(kept), writer.Close())
	if err != nil {
		return agent.Exit{}, err
	}
	pid := kept.Process.Pid
	defer context.AfterFunc(ctx, func() { p.endKept(pid) })()
	err = kept.Wait()
	p.mu.Lock()
	delete(p.kept, pid)
	p.mu.Unlock()
	exit, reported := readExit(reader)
	if !reported {
		return exit, errors.Join(errors.New("its keeper was killed"), err)
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return exit, err
}

// startKept starts a keeper, unless the job is over.
func (p *processes) startKept(kept *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return errors.New("the job is over")
	}
	if err := kept.Start(); err != nil {
		return err
	}
	if p.kept == nil {
		p.kept = map[int]bool{}
	}
	p.kept[kept.Process.Pid] = true
	return nil
}

// keepers returns the keepers that have not ended.
func (p *processes) keepers() (pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid := range p.kept {
		pids = append(pids, pid)
	}
	return pids
}

// endKept ends everything below a keeper, and returns when the keeper has ended. One that a process has stopped is killed at last.
func (p *processes) endKept(keeper int) {
	for killing := time.Now().Add(supervisorTime); slices.Contains(p.keepers(), keeper); sleepContext(context.Background(), briefly) {
		for below := range descendants(processTable(), keeper) {
			_ = syscall.Kill(below, syscall.SIGKILL)
		}
		if _ = syscall.Kill(keeper, syscall.SIGCONT); time.Now().After(killing) {
			_ = syscall.Kill(keeper, syscall.SIGKILL)
		}
	}
}

// close ends the programs that keep runs, and refuses others.
func (p *processes) close() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	for _, keeper := range p.keepers() {
		p.endKept(keeper)
	}
	p.kill(context.Background())
}
