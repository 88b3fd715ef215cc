// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// runDetached detaches from a run and inspects the run while it is in progress.
func runDetached(u trainer) {
	const script = "i=0\nuntil test -e /workspace/enough; do echo \"line $i of $NODE_RANK\"; i=$((i+1)); sleep 0.1; done\necho it is enough\n"
	dir := u.project(map[string]string{"train.sh": script})
	out, _ := u.says(dir, command.Done, append([]string{"run", ".", "train.sh", "--run-name=detached", "--detach"}, runFlags()...)...)
	if out != "detached\n" {
		u.Errorf("run --detach printed %q, want only the name", out)
	}

	// logs --follow waits for the rank, which may not run yet.
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	follow := u.mlenvIn(ctx, dir, "logs", "detached", "--follow", "--rank=1")
	log := &watched{wanted: "line 3 of 1", seen: make(chan struct{})}
	follow.Stdout, follow.Stderr = log, log
	if err := follow.Start(); err != nil {
		u.Fatal(err)
	}
	select {
	case <-log.seen:
	case <-ctx.Done():
		u.Fatalf("logs did not print %q:\n%s", log.wanted, log.String())
	}
	_, problems := u.says(dir, command.Failed, "train", "train.sh", "--launcher=command", "--replace")
	u.mustContain(problems, "run detached works on these nodes")
	_, problems = u.says(dir, command.WrongUsage, "logs", "detached", "--rank=2")
	u.mustContain(problems, "it has 2 ranks, from 0")
	u.says(dir, command.Done, "fetch", "detached", "logs", "--to=early")
	early, err := os.ReadFile(filepath.Join(dir, "early", "logs", "rank-1.log"))
	if err != nil {
		u.Fatal(err)
	}
	u.mustContain(string(early), "line 3 of 1")

	u.says(dir, command.Done, "shell", "--", "touch", "/workspace/enough")
	if err := follow.Wait(); err != nil {
		u.Errorf("logs --follow --rank: %v", err)
	}
	u.mustContain(log.String(), "it is enough")
	e := u.end("detached")
	e.equal("what teardown says", e.receipt.Teardown, "all pods and GPUs were released")
	u.says(dir, command.Done, "receipt", "detached", "--html=report.html")
	report, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		u.Fatal(err)
	}
	u.mustContain(string(report), "detached")
	out, _ = u.says(dir, command.Done, "runs", "--output=yaml")
	u.mustContain(out, "state: Succeeded")
}
