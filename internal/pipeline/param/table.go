// SPDX-License-Identifier: Apache-2.0

package param

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// Param is a param of Tasks and Pipelines, declared once for all in which it means the same.
type Param struct {
	Name string
	Kind Any
	// Default is the text of its value if nobody sets it. Items are none, Required has no default.
	Default string
	// Help is one line of at most twelve words, as flags have it.
	Help string
	// In are the names of the Tasks and Pipelines that have it.
	In string
	Is Trait
	// Value is what a pipeline passes to the Task if that is not the pipeline's own param of this name.
	Value string
}

// Trait is what is special about a param.
type Trait int

// The traits.
const (
	Required Trait = 1 << iota
	// Items is an array.
	Items
	// Free is a text in which users may write what Tekton or the kubelet would replace.
	Free
	// NoFlag is used by the Task itself, as the name of a volume is.
	NoFlag
	// Own means something else than the pipelines' param of this name.
	Own
)

// Has reports whether a Task or Pipeline has the param.
func (p Param) Has(name string) bool { return slices.Contains(strings.Fields(p.In), name) }

// Description is the help as a sentence.
func (p Param) Description() string { return strings.ToUpper(p.Help[:1]) + p.Help[1:] + "." }

// Which Tasks and Pipelines have a param.
const (
	training    = "train-multi-node"
	development = "dev-environment"
	both        = training + " " + development
	every       = "build-image preflight provision sync-repo check-fabric train teardown"
	// environments have what describes an environment.
	environments = both + " preflight provision"
	repositories = both + " sync-repo"
	trainings    = training + " train"
)

// table is in the order in which Tasks and Pipelines have their params.
var table = []Param{
	{Name: "repo-url", Kind: Repository, In: training + " sync-repo", Is: Required | Free,
		Help: "URL of the git repository, https, http or ssh"},
	{Name: "repo-url", Kind: Repository, In: development, Help: "URL of the git repository; empty syncs none"},
	{Name: "script", Kind: Script, In: trainings, Is: Required | Free,
		Help: "path of the script, -m PACKAGE.MODULE, or launcher command's program"},
	{Name: "revision", Kind: Revision, In: repositories, Is: Free, Help: "branch, tag or commit; empty means the default branch"},
	{Name: "script-args", Kind: anything, In: trainings, Is: Items | Free, Help: "arguments of the script"},
	{Name: "nodes", Kind: Count, Default: "0", In: training + " preflight provision",
		Help: "number of nodes; 0 means gpus.default_nodes of the cluster file"},
	{Name: "nodes", Kind: Count, Default: "1", In: development, Help: "number of nodes; 0 means gpus.default_nodes of the cluster file"},
	{Name: "gpus-per-node", Kind: GPUs, In: environments, Help: "GPUs per node, 0 for none; empty means the cluster file's gpus.per_node"},
	{Name: "exclude-nodes", Kind: KubernetesNodes, In: environments,
		Help: "Kubernetes nodes that the environment must not use, separated by commas"},
	{Name: "queue", Kind: Queue, In: environments, Help: "LocalQueue of Kueue that admits the environment; empty means nodes.queue"},
	{Name: "queue-priority", Kind: QueuePriority, In: environments,
		Help: "WorkloadPriorityClass of Kueue for the environment; empty means none"},
	{Name: "ranks-per-node", Kind: Count, Default: "0", In: trainings, Help: "ranks per node; 0 means one per GPU"},
	{Name: "image", Kind: Image, In: both + " build-image preflight",
		Help: "existing training image; empty means image.name or flavour of the cluster file"},
	{Name: "image", Kind: Image, In: "provision", Value: "$(tasks.build-image.results.image)",
		Help: "training image; empty means image.name of the cluster file"},
	{Name: "flavour", Kind: Flavour, In: both + " build-image preflight",
		Help: "flavour of the training image to build; empty means the cluster file's"},
	{Name: "base-image", Kind: Image, In: "build-image", Help: "base image; empty means image.base, or else the Dockerfile's"},
	{Name: "build-args", Kind: BuildArg, In: both + " build-image", Is: Items | Free,
		Help: "build arguments, each KEY=VALUE; never secrets, which the image would show"},
	{Name: "build-timeout", Kind: Duration, Default: "1h", In: both + " build-image", Help: "how long building the image may take"},
	{Name: "pull-secret", Kind: secret, Default: "none", In: both + " build-image preflight", Is: NoFlag,
		Help: "Secret for the registry of the base image, to read its digest"},
	{Name: "launcher", Kind: Launcher, Default: "auto", In: trainings,
		Help: "how ranks start: auto, deepspeed, torchrun, command, deepspeed-launcher or torchrun-launcher"},
	{Name: "hook", Kind: OneOf(pylib.Auto, pylib.None), Default: pylib.Auto, In: trainings,
		Help: "auto shows, saves and resumes unchanged programs; none leaves Python alone"},
	{Name: "deepspeed-config", Kind: DeepSpeedConfig, In: trainings, Is: Free,
		Help: "DeepSpeed configuration in the repository, passed with --deepspeed --deepspeed_config"},
	{Name: "requirements", Kind: Requirements, In: repositories, Is: Free,
		Help: "requirements file in the repository, installed into a virtual environment"},
	{Name: "requirements-timeout", Kind: Duration, Default: "20m", In: "sync-repo", Help: "how long installing the requirements may take"},
	{Name: "env", Kind: Variable, In: trainings, Is: Items | Free,
		Help: "environment variables of the ranks, each KEY=VALUE; never secrets"},
	{Name: "env-secret", Kind: secret, Default: "none", In: trainings + " preflight", Is: NoFlag,
		Help: "Secret whose keys become environment variables of the ranks"},
	{Name: "git-secret", Kind: secret, Default: "none", In: repositories + " preflight", Is: NoFlag,
		Help: "Secret with username and password, token, or ssh-privatekey and known_hosts"},
	{Name: "submodules", Kind: Truth, Default: "true", In: repositories, Help: "whether to fetch submodules too, true or false"},
	{Name: "lfs", Kind: Truth, Default: "false", In: repositories, Help: "whether to fetch Git LFS objects, true or false"},
	// 20m to start, 2m to check the network, 30m to train, 30s to save when it is stopped and 5m to tear down fit into a PipelineRun's
	// default hour.
	{Name: "timeout", Kind: Duration, Default: "30m", In: trainings, Help: "how long the training may run"},
	{Name: "timeout", Kind: checkTime, Default: "90s", In: "check-fabric", Is: Own, Help: "how long the check may take"},
	{Name: "timeout", Kind: Duration, Default: "4m", In: "teardown", Is: Own, Help: "how long pods and GPUs may take to become free"},
	{Name: "training-timeout", Kind: Duration, Default: "0s", In: "build-image provision", Value: "$(params.timeout)",
		Help: "how long the training may run, to check the PipelineRun's timeouts"},
	{Name: "stop-grace", Kind: StopGrace, Default: "30s", In: both + " provision train",
		Help: "how long ranks have to save after SIGTERM, up to 1h"},
	{Name: "hang-timeout", Kind: hangTimeout, Default: "auto", In: trainings,
		Help: "how long no rank may print or measure anything; 0 means never"},
	{Name: "max-restarts", Kind: Restarts, Default: "0", In: trainings,
		Help: "how often a failed training is started again within its timeout"},
	{Name: "stop-if", Kind: rule, In: trainings, Is: Items | Free, Help: "rules that end the training, such as loss is nan"},
	{Name: "restart-if", Kind: rule, In: trainings, Is: Items | Free, Help: "rules that start the training again, as max-restarts allows"},
	{Name: "require-rendezvous", Kind: Consequence, Default: "warn", In: trainings,
		Help: "if no rank was ever connected to another one: warn or fail"},
	{Name: "progress-every", Kind: Duration, Default: "10s", In: "train",
		Help: "how often to show progress, if the training writes metrics"},
	{Name: "tree", Kind: anything, In: "train", Value: "$(tasks.sync-repo.results.tree)",
		Help: "hash of the tree to train from; empty means the newest"},
	{Name: "debug-rank", Kind: DebugRank, Default: "-1", In: "train", Help: "rank that waits for a debugger; -1 means none"},
	{Name: "notify", Kind: secret, Default: "none", In: trainings + " teardown", Is: NoFlag,
		Help: "Secret whose key url is the address for the run's events"},
	{Name: "start-timeout", Kind: Duration, Default: "20m", In: both + " build-image provision",
		Help: "how long all nodes together may take to start"},
	{Name: "mode", Kind: Mode, Default: "auto", In: both + " preflight",
		Help: "transport: rdma insists, tcp forbids RDMA, auto uses it if possible"},
	{Name: "mode", Kind: Mode, Default: "auto", In: "provision", Value: "$(tasks.preflight.results.mode)",
		Help: "transport: rdma insists, tcp forbids RDMA, auto uses it if possible"},
	{Name: "mode", Kind: checkMode, In: "check-fabric", Is: Own, Help: "expected transport, tcp or rdma; empty means the environment's"},
	{Name: "requested-mode", Kind: Mode, In: "provision", Value: "$(params.mode)",
		Help: "mode before preflight decided; empty means the param mode"},
	{Name: "check-fabric", Kind: Truth, Default: "true", In: training,
		Help: "whether to measure the network before the training, true or false"},
	{Name: "fabric-bandwidth", Kind: Consequence, Default: "warn", In: training + " check-fabric",
		Help: "if the network or a device is slow: warn or fail"},
	{Name: "storage", Kind: Storage, In: environments,
		Help: "claims: rwx shares them, volumeClaimTemplates gives each node its own, or auto"},
	{Name: "workspace-size", Kind: Size, In: environments, Help: "size of the workspace claim; empty means the cluster file's"},
	{Name: "datasets-size", Kind: Size, In: environments, Help: "size of the datasets claim; empty means the cluster file's"},
	{Name: "on-busy", Kind: OnBusy, Default: "fail", In: both + " provision",
		Help: "if another run or user holds the environment: fail or wait"},
	{Name: "on-change", Kind: OnChange, Default: "fail", In: both + " provision",
		Help: "if the environment differs from the request: fail or recreate its pods"},
	{Name: "keep-for", Kind: Duration, Default: "30m", In: development, Help: "how long to keep the environment"},
	{Name: "keep-for", Kind: Duration, Default: "0s", In: "provision",
		Help: "how long the environment's Lease lasts; 0s means while steps renew it"},
	{Name: "keep", Kind: Truth, Default: "true", In: development, Help: "whether to keep the environment, true or false"},
	{Name: "keep", Kind: Truth, Default: "false", In: "teardown",
		Help: "whether to keep the environment until its Lease expires, true or false"},
	{Name: "services", Kind: anything, Default: "all", In: development,
		Help: "services on node 0: code-server, jupyter, tensorboard, all or none"},
	{Name: "services", Kind: anything, Default: "none", In: "provision",
		Help: "services on node 0: code-server, jupyter, tensorboard, all or none"},
	{Name: "routes", Kind: Truth, Default: "false", In: development + " preflight provision",
		Help: "whether to create an OpenShift Route for each service, true or false"},
	{Name: "idle-timeout", Kind: IdleTimeout, In: "provision", Help: "how long a user's environment may be unused; 0 means for ever"},
	{Name: "force", Kind: Truth, Default: "false", In: "build-image",
		Help: "whether to build an image that exists already, true or false"},
	{Name: "force", Kind: Truth, Default: "false", In: "teardown",
		Help: "whether to release another user's or run's environment, true or false"},
	{Name: "name", Kind: Name, Default: objects.DefaultName, In: both + " preflight provision sync-repo check-fabric train teardown",
		Help: "name of the environment; those with different names exist in parallel"},
	{Name: "cluster", Kind: installedCluster, Default: "local", In: environments + " build-image", Is: NoFlag,
		Help: "name of an installed cluster file; mlenv install sets the default"},
	{Name: "run-name", Kind: anything, In: every, Value: "$(context.pipelineRun.name)",
		Help: "name of the PipelineRun; empty if a user starts the step"},
	{Name: "run-uid", Kind: anything, In: every, Value: "$(context.pipelineRun.uid)",
		Help: "UID of the PipelineRun; empty if a user starts the step"},
	{Name: "run-params", Kind: anything, In: "build-image sync-repo train", Is: NoFlag,
		Help: "params, separated by commas, whose values the step reads in the PipelineRun"},
	{Name: "log-format", Kind: OneOf("text", "json"), Default: "text", In: every, Is: NoFlag,
		Help: "format of the log: text, or json for programs"},
	{Name: "steps-image", Kind: Image, In: environments, Help: "image of the steps; mlenv install sets it, by digest"},
	{Name: "steps-image", Kind: Image, In: "build-image sync-repo check-fabric train teardown", Is: NoFlag,
		Help: "image of the steps; mlenv install sets it, by digest"},
}

// TakenBy returns the params of a Task or Pipeline in their order.
func TakenBy(name string) []Param {
	return slices.DeleteFunc(slices.Clone(table), func(p Param) bool { return !p.Has(name) })
}

// find returns a param of a Task or Pipeline.
func find(of, name string) (Param, bool) {
	i := slices.IndexFunc(table, func(p Param) bool { return p.Name == name && p.Has(of) })
	if i < 0 {
		return Param{}, false
	}
	return table[i], true
}

// Passed returns what a pipeline passes to a param of one of its Tasks; ok is false if the Task uses its default.
func Passed(pipeline, task string, p Param) (value string, ok bool) {
	switch value = p.Value; {
	case p.Is&Own != 0:
		return "", false
	case p.Name == "run-params":
		return strings.Join(freeOf(pipeline, task), ","), true
	case value == "":
		value = "$(params." + p.Name + ")"
	}
	if of, isParam := strings.CutPrefix(strings.TrimSuffix(value, ")"), "$(params."); isParam {
		if _, has := find(pipeline, of); !has {
			// The Task's default may be the cluster file's Secret, and a development environment posts nothing.
			return "none", p.Name == "notify"
		}
	}
	return value, true
}

func freeOf(pipeline, task string) (names []string) {
	for _, p := range TakenBy(task) {
		if _, has := find(pipeline, p.Name); has && p.Is&Free != 0 {
			names = append(names, p.Name)
		}
	}
	return names
}

// KindOf returns the kind of a param of the pipelines. A param that only the installed pipeline has may be anything.
func KindOf(name string) Any {
	for _, pipeline := range []string{training, development} {
		if p, ok := find(pipeline, name); ok {
			return p.Kind
		}
	}
	return anything
}

// Flag adds the flag of a step for a param of its Task, with its default and its help. Another default is one of other commands.
func Flag[T any](flags *pflag.FlagSet, to *T, task, name string) *pflag.Flag {
	p, ok := find(task, name)
	kind, right := p.Kind.(*Kind[T])
	if !ok || !right {
		panic(fmt.Sprintf("flag --%s: Task %s has no param of this name and type", name, task))
	}
	value, _ := kind.parse(p.Default) // such as "", which is the cluster file's
	kind.AddTo(flags, to, name, value, strings.TrimSuffix(strings.TrimPrefix(p.Help, "whether to "), ", true or false"))
	return flags.Lookup(name)
}

// Help returns the help of a param of a Task, for a flag of a type of its own.
func Help(task, name string) string {
	p, _ := find(task, name)
	return p.Help
}
