// SPDX-License-Identifier: Apache-2.0

// Package setup has the commands that prepare a namespace: install, uninstall and admin.
package setup

import (
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
)

// InstallCommand returns the command mlenv install. files has tasks/ and pipelines/.
func InstallCommand(files fs.FS, carry install.Carry) *cobra.Command {
	o := install.Options{Carry: carry}
	steps := stepsImage{files: files}
	cmd := &cobra.Command{
		Use:   "install CLUSTER.yaml",
		Short: "Install the Tasks, the Pipelines and the rights to train in a namespace",
		Long: `Install creates in a namespace the Tasks and Pipelines with the cluster's defaults, the cluster file, and a
ServiceAccount with one Role for all steps. Installing again updates them, including the namespace's schedules, and
deletes what the last install created and this one does not. It changes nothing unless you hold every right and
the API server accepts every object.

The Tasks run the steps image. Without --steps-image it is the release's. If the cluster cannot pull that, or this mlenv is
not of a release, the cluster builds the image from this program with a BuildConfig, into the ImageStream ml-dev-env.
Nothing is compiled, and no registry or local container tool is needed. A cluster without OpenShift's builds needs
--steps-image, which make steps-image prints.

--dry-run prints the changes as a diff of YAML. --output=yaml prints the objects for another user to apply and connects
to no cluster, so it omits schedules; it looks up a steps image by tag in its registry. --output=json prints the changes.

--admin adds a ClusterRole with which the steps read nodes, pods, claims, storage classes, attachments, constraints,
machine configurations and Kueue's objects of the whole cluster. It needs a cluster administrator. Without --admin an
earlier ClusterRole stays as it is.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv install clusters/cairo.yaml --dry-run
  mlenv install clusters/cairo.yaml
  mlenv install clusters/cairo.yaml --steps-image=quay.io/me/steps@sha256:... --output=yaml | oc apply --server-side -f -`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(command.Want(!o.DryRun || !o.Output.Is(command.YAML),
				"--dry-run with --output=yaml, which changes nothing anyway: want one of the two"),
				command.Want(o.StepsImage == "" || !cmd.Flags().Changed("program") && !cmd.Flags().Changed("base"),
					"--steps-image with --program or --base, of which another one is built: want one of the two"),
				command.FlagMistakes(cmd.Flags()), command.Arguments(1, 1, "one cluster file")(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Path = args[0]
			steps.log = command.TextLog(cmd.ErrOrStderr())
			o.Find = steps.findImage
			return install.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), files, o)
		},
	}
	o.Flags.AddNamespace(cmd.Flags(), "namespace (default: cluster.namespace of the file)")
	cmd.Flags().StringVar(&o.StepsImage, "steps-image", "", "steps image (default: the release's, or one that the cluster builds)")
	param.Image.AddTo(cmd.Flags(), &steps.base, "base", stepsBase,
		"base of a steps image that is built, with git, git-lfs, ssh, sh and certificates")
	cmd.Flags().StringVar(&steps.program, "program", "", "mlenv for Linux from which the steps image is built (default: this program)")
	cmd.Flags().StringVar(&o.ServiceAccount, "service-account", launch.ServiceAccount,
		"ServiceAccount that gets the rights, and that runs of mlenv use; tkn need not name Tekton's default account, on OpenShift pipeline")
	cmd.Flags().BoolVar(&o.ClusterRole, "admin", false, "also let the steps read nodes, pods and settings of the whole cluster")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "print what would change, as the API server answers, and change nothing")
	o.Output.AddUse(cmd.Flags(), "yaml prints the objects instead of applying them; json prints the changes", command.Text, command.YAML,
		command.JSON)
	return cmd
}
