// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// clustersFolder is where cluster files are kept, in a checkout.
const clustersFolder = "clusters"

// Command returns the command mlenv init.
func Command() *cobra.Command {
	var (
		flags   kube.Flags
		file    string
		account string
		force   bool
	)
	cmd := &cobra.Command{
		Use:   "init [NAME]",
		Short: "Write a cluster file from a live cluster",
		Long: `Write a cluster file from the cluster of the kubeconfig: its API server, the nodes with GPUs and how many are free, type of
the GPUs, taints and racks, storage classes, RDMA resources with their network attachments, the constraints that the
pods' service account may use, and the proxy. Comments mark what is a guess, and what is unknown because you may not read
it; unknown values get the default. mlenv only reads.

The file is clusters/NAME.yaml if the folder clusters exists, else NAME.yaml. Only --force overwrites a file. --to=-
prints it.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		Example: `  mlenv init cairo --namespace=nccl-test
  mlenv init --to=- | less`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := command.Arguments(0, 1, "one name of a cluster or none")(cmd, args); err != nil {
				return err
			}
			for _, name := range args {
				if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
					return fmt.Errorf("name %q of the cluster: %s", name, problems[0])
				}
			}
			return nil
		},
		RunE: envflags.Connected(&flags, func(cmd *cobra.Command, clients *kube.Clients, args []string) error {
			facts, err := inspectCluster(cmd.Context(), clients, strings.Join(args, ""), account)
			if err != nil {
				return err
			}
			draft, err := Write(facts)
			if err != nil {
				return err
			}
			if file == "-" {
				_, err := cmd.OutOrStdout().Write(draft.Text)
				return err
			}
			path, err := save(file, draft, force)
			if err != nil {
				return err
			}
			report(cmd.OutOrStdout(), path, draft)
			return nil
		}),
	}
	flags.AddNamespace(cmd.Flags(), "namespace of the file (default: the kubeconfig's)")
	cmd.Flags().StringVar(&file, "to", "", "file to write; - prints it (default: clusters/NAME.yaml or NAME.yaml)")
	cmd.Flags().StringVar(&account, "pod-account", cluster.Default().Security.ServiceAccount,
		"service account of the environment's pods, whose constraints are looked for")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite a file that exists")
	return cmd
}

func save(path string, draft Draft, force bool) (string, error) {
	if path == "" {
		path = draft.File.Cluster.Name + ".yaml"
		if info, err := os.Stat(clustersFolder); err == nil && info.IsDir() {
			path = filepath.Join(clustersFolder, path)
		}
	}
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	out, err := os.OpenFile(path, mode, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", fail.Advise(fail.Becausef(fail.InvalidInput, "writing %s: it exists: want a new file", path),
			"--force overwrites it; --to=- prints instead")
	} else if err != nil {
		return "", fail.Becausef(fail.InvalidInput, "writing the cluster file: %w", err)
	}
	_, err = out.Write(draft.Text)
	if err := errors.Join(err, out.Close()); err != nil {
		return "", fmt.Errorf("writing %s: %w", path, err)
	}
	return path, nil
}

func report(out io.Writer, path string, draft Draft) {
	f := draft.File
	nodes := "any node with GPUs"
	if f.Nodes.GPUNodes != nil {
		nodes = humanize.Count(len(f.Nodes.GPUNodes), "node")
	}
	fmt.Fprintf(out, "wrote %s: %s at %s, %s, %d GPUs each, storage %s\n", path, f.Cluster.Name, f.Cluster.API, nodes, f.GPUs.PerNode,
		f.Storage.Mode)
	for _, part := range []struct {
		word  string
		texts []string
	}{{"guess", draft.Guesses}, {"unknown", draft.Unknown}} {
		for _, text := range part.texts {
			fmt.Fprintf(out, "  %s: %s\n", part.word, text)
		}
	}
	fmt.Fprintf(out, "next: check the guesses, then\n  mlenv install %[1]s\n  mlenv preflight --cluster-file=%[1]s\n", path)
}
