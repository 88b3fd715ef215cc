// SPDX-License-Identifier: Apache-2.0

package train

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestDebuggedRankIsShown: the step prints how to reach the rank, and waits for it.
func TestDebuggedRankIsShown(t *testing.T) {
	training, out, agents := newTraining(t, "")
	bin, attached := t.TempDir(), filepath.Join(t.TempDir(), "attached")
	// The launcher is torchrun with one rank per node, and the interpreter waits with debugpy.
	python := fmt.Sprintf(`#!/bin/sh
[ "$1" = -c ] && exit 0
if [ "$3" = torch.distributed.run ]; then
  while [ "$1" != --no-python ]; do shift; done
  shift
  RANK=$NODE_RANK LOCAL_RANK=0 exec "$@"
fi
[ "$4" = debugpy ] && while [ ! -e '%s' ]; do sleep 0.02; done
echo "rank $NODE_RANK is done"`, attached)
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(python), 0o755); err != nil {
		t.Fatal(err)
	}
	// The listener stands in for debugpy, and so does another program's.
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", agent.DebugPort))
	if err == nil {
		defer listener.Close()
	} else if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatal(err)
	}
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.py"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	training.Spec.Env = map[string]string{"PATH": bin + ":" + os.Getenv("PATH")}
	training.Spec.Launcher, training.Spec.Script, training.Spec.RanksPerNode = agent.Torchrun, "train.py", 1
	training.Spec.DebugRank, training.Spec.Deadline = new(1), time.Now().Add(time.Hour)
	const reached = " port-forward pod/env-1 5678 -n ns" // the arguments of kubectl, or of oc if it is installed
	go func() {                                          // a user who reads it attaches
		const timeForTheRankToWait = time.Minute
		for began := time.Now(); !strings.Contains(out.String(), reached) && time.Since(began) < timeForTheRankToWait; {
			time.Sleep(10 * time.Millisecond)
		}
		if err := os.WriteFile(attached, nil, 0o644); err != nil {
			t.Error(err)
		}
	}()
	if _, err := training.Attempt(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := strings.Index(out.String(), "Rank 1 waits on node 1 for a debugger")
	done := strings.Index(out.String(), "[1 1] rank 1 is done")
	if said < 0 || done < said || strings.Count(out.String(), reached) != 1 {
		t.Errorf("output %q, want it to print once how to reach the rank, before the rank is done", out)
	}

	training.ID, training.Spec.DebugRank = "another", new(2)
	if _, err := training.Attempt(t.Context()); fail.ReasonOf(err) != fail.InvalidInput {
		t.Errorf("a rank that does not exist: %v, want InvalidInput", err)
	}
}

func TestDebugRankFlag(t *testing.T) {
	for args, want := range map[string]string{
		"--debug-rank=0":                     "",
		"--debug-rank=-1 --launcher=command": "",
		"--debug-rank=0 --launcher=command":  "launcher command starts programs, not ranks",
		"--debug-rank=-2":                    "want a rank from 0, or -1 for none",
	} {
		cmd := Command()
		if err := cmd.ParseFlags(append(strings.Fields(args), "--script=train.py")); err != nil {
			t.Fatal(err)
		}
		err := errors.Join(cmd.ValidateArgs(nil), command.FlagMistakes(cmd.Flags()))
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
