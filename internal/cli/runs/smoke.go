// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
)

// SmokeCommand returns the command mlenv smoke, a small run of the example. files is the bundle.
func SmokeCommand(files, example fs.FS) *cobra.Command {
	o := runOptions{params: newParams(files)}
	cmd := &cobra.Command{
		Use:   "smoke",
		Short: "Test all phases of a run in minutes with a small training",
		Long: `Train a small transformer for a few steps with the installed pipeline, by default on two nodes with one GPU each. The run
has all phases of a long one.

With --image it uses an image with PyTorch and DeepSpeed and builds none.

Exit codes: as for mlenv run.`,
		Example: `  mlenv smoke
  mlenv smoke --image=quay.io/me/small:v1 --nodes=1`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.params.addTo(flags)
	flags.BoolVarP(&o.detach, "detach", "d", false, "print the run's name, and leave it running once the files are sent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := os.MkdirTemp("", "mlenv-smoke-")
		if err != nil {
			return fmt.Errorf("creating a folder for the example: %w", err)
		}
		defer os.RemoveAll(dir)
		if err := os.CopyFS(dir, example); err != nil {
			return fmt.Errorf("unpacking the example: %w", err)
		}
		for name, value := range map[string]string{"nodes": "2", "gpus-per-node": "1", "timeout": "10m", "deepspeed-config": "ds_zero2.json"} {
			if !flags.Changed(name) {
				if err := flags.Set(name, value); err != nil {
					return err
				}
			}
		}
		if o.values, err = o.params.values(cmd); err != nil {
			return err
		}
		o.values["repo-url"], o.values["script"] = []string{dir}, []string{"train.py"}
		o.values["script-args"] = []string{"--steps=150", "--stop-at=20", "--checkpoint-dir="}
		return envflags.Connected(&o.kube, o.start)(cmd, nil)
	}
	return cmd
}
