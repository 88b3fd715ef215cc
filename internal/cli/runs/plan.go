// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/preflight"
)

// planRun prints what a run with the values would create. account is of the steps, "" for the pipeline's. Its error is why the run would
// not start.
func planRun(ctx context.Context, out io.Writer, clients *kube.Clients, pipeline *v1.Pipeline, account string,
	values map[string][]string,
) error {
	value := func(name string) string { return launch.ParamValue(pipeline, values, name) }
	file, err := clusterfile.LoadInstalled(ctx, clients, value("cluster"))
	if err != nil {
		return fail.Advise(err, "mlenv run --cluster=NAME, or install a cluster file: mlenv install FILE -n %s",
			clients.Namespace)
	}
	registry, err := buildimage.RegistryFor(clients, "", "")
	if err != nil {
		return err
	}
	options := planOptions(value)
	options.ServiceAccount = cmp.Or(account, launch.AccountOf(pipeline))
	options.Request.Cluster, options.Request.Namespace = file, clients.Namespace
	report := preflight.Examine(ctx, preflight.Deps{Clients: clients, Registry: registry}, options)
	plan := preflight.PlanOf(ctx, clients.Kube, report)
	var output command.OutputFlag
	err = output.Print(out, plan, func(out io.Writer) error {
		fmt.Fprintf(out, "%-12s %s\n", "script", strings.Join(append([]string{value("script")}, values["script-args"]...), " "))
		plan.Print(out)
		fmt.Fprintf(out, "\nVerdict: %s.\nNothing was started: this was a dry run.\n", plan.Verdict)
		return nil
	})
	if err != nil {
		return err
	}
	return report.Err()
}

// checkCapacity refuses, before anything is created, more nodes or GPUs than the cluster file has. Whoever may not read that leaves it to
// preflight.
func checkCapacity(ctx context.Context, clients *kube.Clients, pipeline *v1.Pipeline, values map[string][]string) error {
	value := func(name string) string { return launch.ParamValue(pipeline, values, name) }
	file, err := clusterfile.LoadInstalled(ctx, clients, value("cluster"))
	if err != nil {
		return nil //nolint:nilerr // preflight reports it
	}
	request := planOptions(value).Request
	request.Cluster = file
	return request.CheckCapacity()
}

// planOptions returns preflight's options for a run. launch.Params has checked the values.
func planOptions(value func(param string) string) preflight.Options {
	number := func(param string) int {
		n, _ := strconv.ParseInt(value(param), 0, 32)
		return int(n)
	}
	o := preflight.Options{Mode: agent.Mode(value("mode")), Flavour: value("flavour")}
	r := &o.Request
	r.Name, r.Nodes = value("name"), number("nodes")
	if value("gpus-per-node") != "" {
		r.GPUsPerNode = new(number("gpus-per-node"))
	}
	r.Image, r.Storage = value("image"), cluster.StorageMode(value("storage"))
	r.Queue, r.QueuePriority = value("queue"), value("queue-priority")
	r.StopGrace, _ = time.ParseDuration(value("stop-grace")) // launch.Params has checked it
	r.WorkspaceSize, r.DatasetsSize, r.Routes = value("workspace-size"), value("datasets-size"), value("routes") == "true"
	if excluded := value("exclude-nodes"); excluded != "" {
		r.ExcludeNodes = strings.Split(excluded, ",")
	}
	if image := value("steps-image"); !strings.HasPrefix(image, "registry.invalid/") {
		r.StepsImage = image
	}
	return o
}
