// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"slices"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Flags of a step in a Task that has its params read again.
const (
	taskRunFlag   = "task-run"
	runParamsFlag = "run-params"
)

// arrays are the array params of the steps, in the order of their arguments, each behind a --.
var arrays = map[string][]string{"train": {"env", "stop-if", "restart-if", "script-args"}, "build-image": {"build-args"}}

// exact returns the arguments of a step with the values that its params were given, because Tekton and the kubelet may have changed
// them on their way. Arguments without --task-run, such as a user's, stay as they are.
func exact(ctx context.Context, step string, args []string, connect func(namespace string) (versioned.Interface, string, error)) (
	[]string, error) {
	flags, _ := cut(args)
	taskRun := valueOf(flags, taskRunFlag)
	if taskRun == "" {
		return args, nil
	}
	client, namespace, err := connect(valueOf(flags, "namespace"))
	if err != nil {
		return nil, err
	}
	values, err := run.Values(ctx, client, run.Source{
		Namespace: namespace, TaskRun: taskRun, Run: valueOf(flags, "run-name"), UID: types.UID(valueOf(flags, "run-uid")),
		Params: strings.FieldsFunc(valueOf(flags, runParamsFlag), func(r rune) bool { return r == ',' }),
	})
	if err != nil {
		return nil, err
	}
	return withValues(args, values, arrays[step]), nil
}

// connect returns Tekton's client and the namespace, for exact.
func connect(namespace string) (versioned.Interface, string, error) {
	clients, err := kube.Flags{Namespace: namespace}.Connect()
	if err != nil {
		return nil, "", err
	}
	return clients.Tekton, clients.Namespace, nil
}

// withValues replaces the values of flags that are named after params, and everything behind the flags by the array params.
func withValues(args []string, values map[string]v1.ParamValue, arrays []string) []string {
	flags, behind := cut(args)
	var result []string
	for _, arg := range flags {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if value, given := values[name]; given && value.Type == v1.ParamTypeString && strings.HasPrefix(arg, "--"+name+"=") {
			arg = "--" + name + "=" + value.StringVal
		}
		result = append(result, arg)
	}
	if len(arrays) == 0 {
		return append(result, behind...)
	}
	for _, name := range arrays {
		result = append(append(result, "--"), values[name].ArrayVal...)
	}
	return result
}

// cut cuts arguments before the first --.
func cut(args []string) (flags, behind []string) {
	at := slices.Index(args, "--")
	if at < 0 {
		at = len(args)
	}
	return args[:at], args[at:]
}

func valueOf(flags []string, name string) string {
	for _, arg := range flags {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}
