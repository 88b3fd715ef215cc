// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"slices"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/param"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// taskRunFlag names the TaskRun of a step, which has its params.
const taskRunFlag = "task-run"

// arrays are the array params of the steps, in the order of their arguments, each behind a --.
var arrays = map[string][]string{"train": {"env", "stop-if", "restart-if", "script-args"}, "build-image": {"build-args"}}

// withParams adds the params of a step's TaskRun to its arguments. A user's arguments, without --task-run, stay as they are.
func withParams(ctx context.Context, step string, args []string, connect func(namespace string) (versioned.Interface, string, error)) (
	[]string, error) {
	taskRun := valueOf(args, taskRunFlag)
	if taskRun == "" {
		return args, nil
	}
	client, namespace, err := connect(valueOf(args, "namespace"))
	if err != nil {
		return nil, err
	}
	values, err := run.Values(ctx, client, namespace, taskRun)
	if fail.ReasonOf(err) == fail.PermissionDenied {
		err = fail.Advise(err, "tkn task start ... --serviceaccount=%s, which mlenv install creates with all rights of the steps",
			launch.ServiceAccount)
	}
	if err != nil {
		return nil, err
	}
	args = slices.Clone(args)
	for _, p := range param.TakenBy(step) {
		if value, given := values[p.Name]; given && value.Type == v1.ParamTypeString && p.Is&(param.Items|param.NoFlag) == 0 {
			args = append(args, "--"+p.Name+"="+value.StringVal)
		}
	}
	for _, name := range arrays[step] {
		args = append(append(args, "--"), values[name].ArrayVal...)
	}
	return args, nil
}

// connect returns Tekton's client and the namespace, for withParams.
func connect(namespace string) (versioned.Interface, string, error) {
	clients, err := kube.Flags{Namespace: namespace}.Connect()
	if err != nil {
		return nil, "", err
	}
	return clients.Tekton, clients.Namespace, nil
}

func valueOf(args []string, name string) string {
	for _, arg := range args {
		if arg == "--" {
			break
		}
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}
