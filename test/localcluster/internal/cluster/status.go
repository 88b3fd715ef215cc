// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gitserver"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/registry"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Status prints the state of the cluster, and reports whether it can be used.
func Status(ctx context.Context, out io.Writer) (usable bool, err error) {
	options, ok, err := Stored()
	if err != nil {
		return false, err
	}
	if !ok {
		fmt.Fprintln(out, "there is no cluster; localcluster up makes one")
		return false, nil
	}
	components, err := process.List()
	if err != nil {
		return false, err
	}
	usable = true
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tPID\tSTATE")
	for _, c := range components {
		state := "running"
		if !c.Alive {
			state, usable = "dead: localcluster logs "+c.Name, false
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", c.Name, c.PID, state)
	}
	if err := w.Flush(); err != nil {
		return false, err
	}
	for _, part := range []struct {
		name string
		wait func(context.Context) error
	}{
		{"API server", waitAPI},
		{"nodes", func(ctx context.Context) error { return waitNodes(ctx, options, nil) }},
		{"Tekton, DNS and builds", func(ctx context.Context) error { return waitReady(ctx, options) }},
	} {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		state := "ready"
		if err := part.wait(ctx); err != nil {
			state, usable = err.Error(), false
		}
		cancel()
		fmt.Fprintf(out, "%s: %s\n", part.name, state)
	}
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return false, err
	}
	fmt.Fprintf(out, `
nodes        %d, %d GPUs each, cgroup %s
kubeconfig   %s
programs     %s (kubectl, tkn)
registry     %s (plain HTTP); DOCKER_CONFIG=%s has its credentials
             %s/%s has its own user and password, in %s
git          https://%s/{public,private,submodules,lfs}.git, in pods; on the host by %s
             token %s, ssh key %s
audit log    %s
`, options.Nodes, options.GPUs, cgroups.Version(), topology.Kubeconfig(), topology.State("bin"), topology.RegistryHost, DockerConfig(),
		topology.RegistryHost, registry.Private, registry.CredentialsFile(registryDir(), registry.PrivateUser),
		topology.GitHost, topology.ControlIP,
		topology.State("git", gitserver.TokenFile), topology.State("git", gitserver.ClientKeyFile), AuditLogPath)
	return usable, nil
}

// Logs copies a component's log to out.
func Logs(name string, out io.Writer) error {
	f, err := os.Open(process.LogPath(name))
	if err != nil {
		logs, globErr := filepath.Glob(process.LogPath("*"))
		if globErr != nil || len(logs) == 0 {
			return fmt.Errorf("no component has a log: there is no cluster")
		}
		names := ""
		for _, l := range logs {
			base := filepath.Base(l)
			names += " " + base[:len(base)-len(".log")]
		}
		return fmt.Errorf("no component is named %q; there are:%s", name, names)
	}
	defer f.Close()
	_, err = io.Copy(out, f)
	return err
}
