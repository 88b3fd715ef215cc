package dev

import (
	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/steps/train"
)

func trainCommand() *cobra.Command {
	cmd := ofStep(train.ForPeople())
	cmd.Short = "Train on all nodes of a kept environment, now"
	cmd.Long = `Launch a script on all nodes of an environment that is up and follow it to its end, with the code of the step
train: the same launchers, variables, record and answers. The script runs in the tree that mlenv sync put there
last; a path that begins with / is one on the nodes. Again takes seconds: nothing is built or made.

Arguments before -- are variables for the ranks, those after it are the script's own. Ctrl-C stops the training. One that
was left running, because this machine went away, is in the way of the next one; --replace stops it.

Exit code 0: every rank exited with 0; 1: not, and the rank that failed first is named; 2: wrong usage.`
	cmd.Example = `  mlenv train train.py
  mlenv train train.py NCCL_DEBUG=WARN --launcher=torchrun -- --steps 500 --lr 3e-4
  mlenv train train.py --debug-rank=0   # it waits for a debugger on port 5678`
	return cmd
}
