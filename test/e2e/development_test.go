// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/claims"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/dev"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// devLoop does what a user does in an hour on a kept environment.
func devLoop(u trainer) {
	mlenv := func(code int, says string, args ...string) (printed string) {
		u.Helper()
		root := &cobra.Command{Use: "mlenv"}
		root.AddCommand(dev.Commands()...)
		root.AddCommand(claims.Command(), runs.ListCommand(), runs.ReceiptCommand(), runs.LogsCommand())
		// Two buffers, because a shell's output and errors arrive at the same time.
		var out, problems bytes.Buffer
		dash := len(args)
		for i, arg := range args {
			if arg == "--" {
				dash = i
				break
			}
		}
		all := append([]string{args[0], "--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}, args[1:dash]...)
		got := command.RunCommands(u.Context(), root, append(all, args[dash:]...), &out, &problems)
		if got != code {
			u.Fatalf("mlenv %s: exit code %d, want %d:\n%s%s", strings.Join(args, " "), got, code, out.String(), problems.String())
		}
		u.mustContain(out.String()+problems.String(), says)
		return out.String()
	}
	folder := u.TempDir()
	write := func(name, content string) {
		u.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o755); err != nil {
			u.Fatal(err)
		}
	}
	mlenv(command.Failed, "mlenv up ml-dev-env", "sync", folder)
	// Data comes by an environment without GPUs.
	mlenv(command.Done, "1 node, 0 GPUs each", "up", "--cluster-file="+u.clusterFile(), "--steps-image="+u.steps, "--nodes=1",
		"--gpus-per-node=0")
	mlenv(command.Done, "", "shell", "0", "--", "sh", "-c", "mkdir /datasets/corpus && echo of the corpus >/datasets/corpus/text")
	mlenv(command.Done, "All pods are gone", "down")
	mlenv(command.Done, "is kept until", "up", "--cluster-file="+u.clusterFile(), "--steps-image="+u.steps, "--nodes=2", "--gpus-per-node=1")
	write("train.sh", "echo first on $NODE_RANK; ls\n")
	write("big.bin", "not to be sent\n")
	write(".gitignore", "*.bin\n")
	mlenv(command.Done, "is on 2 nodes", "sync", folder)
	mlenv(command.Done, "[1 -] first on 1", "train", "train.sh", "--launcher=command")
	write("train.sh", "test ! -e big.bin && echo second on $NODE_RANK\n")
	mlenv(command.Done, "is on 2 nodes", "sync", folder)
	mlenv(command.Done, "[0 -] second on 0", "train", "train.sh", "--launcher=command")
	trainings := strings.Fields(mlenv(command.Done, "by-hand-", "runs", "--output=name"))
	if len(trainings) != 2 {
		u.Errorf("mlenv runs has %q, want the two trainings of mlenv train", trainings)
	}
	mlenv(command.Done, "Succeeded", "receipt", trainings[0])
	mlenv(command.Done, "second on 1", "logs", trainings[0], "--rank=1")
	mlenv(command.Done, "NODE_RANK=1", "shell", "1", "--", "env")
	mlenv(command.Failed, "has nodes 0 to 1", "shell", "7")
	u.overSSH()
	mlenv(command.Failed, "neither in the tree nor a program", "train", "nothing.sh", "--launcher=command")
	mlenv(command.WrongUsage, "want the training script", "train")
	mlenv(command.Done, "of the corpus", "shell", "0", "--", "cat", "/datasets/corpus/text")
	mlenv(command.Failed, "mounted by ml-dev-env-0, ml-dev-env-1", "claims", "delete", "ml-dev-datasets", "--yes")
	mlenv(command.Done, "All pods are gone and their GPUs free", "down")
	u.nothingLeft()
	mlenv(command.Done, "There is no environment", "down")
	u.claimsAre("ml-dev-datasets", "ml-dev-workspace")
	mlenv(command.Done, "ml-dev-datasets   ml-dev-env", "claims")
}
