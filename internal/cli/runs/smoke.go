package runs

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// SmokeCommand is mlenv smoke: mlenv run of the example, made small. files is the bundle.
func SmokeCommand(files, example fs.FS) *cobra.Command {
	pipeline, err := pipelineOf(files)
	if err != nil {
		panic(err) // the bundle is part of the program, and tested
	}
	o := runOptions{params: params{pipeline: pipeline}}
	cmd := &cobra.Command{
		Use:   "smoke",
		Short: "Try the whole path in minutes: a small transformer, a few steps",
		Long: `Run a small transformer for a few steps by the pipeline that is installed in the namespace, on two nodes with one GPU each
where nothing else is said: build or find the image, make the environment, send the files, measure the network, train,
and give everything back. What works for it works for a long training.

With --image it takes that image, with PyTorch and DeepSpeed in it, and builds none: worth it before a long build.

Exit code 0: it succeeded, or was left running; 1: it failed, and the reason is told; 2: wrong usage; 130: it was cancelled.`,
		Example: `  mlenv smoke
  mlenv smoke --image=quay.io/me/small:v1 --nodes=1`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	o.kube.AddTo(flags)
	o.params.addTo(flags)
	flags.BoolVarP(&o.detach, "detach", "d", false, "print the run's name and leave it running, when the files are sent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := os.MkdirTemp("", "mlenv-smoke-")
		if err != nil {
			return fmt.Errorf("making a folder for the example: %w", err)
		}
		defer os.RemoveAll(dir)
		if err := os.CopyFS(dir, example); err != nil {
			return fmt.Errorf("unpacking the example: %w", err)
		}
		o.target, o.script = dir, "train.py"
		o.args, o.argsGiven = []string{"--steps=150", "--stop-at=20", "--checkpoint-dir="}, true
		for name, value := range map[string]string{"nodes": "2", "gpus-per-node": "1", "timeout": "10m", "deepspeed-config": "ds_zero2.json"} {
			if !flags.Changed(name) {
				if err := flags.Set(name, value); err != nil {
					return err
				}
			}
		}
		return o.run(cmd)
	}
	return cmd
}
