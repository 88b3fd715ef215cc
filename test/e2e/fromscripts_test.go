// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

const (
	// anyCode is for commands that judge the cluster, whose GPUs other scenarios may hold.
	anyCode = -1
	// interrupted is for commands that continue until Ctrl-C.
	interrupted = -2
)

// typed is a command of docs/project/from-scripts.md as a user of the local cluster types it.
type typed struct {
	command string
	// more are flags that only the local cluster needs.
	more []string
	// file is the cluster file in its words, "" for the scenario's.
	file string
	code int
	// says is a pattern of its output, "" for any.
	says string
}

// successors returns the commands of docs/project/from-scripts.md that from-scripts types, and others that replace variables and checks of
// the scripts, in an order in which they can be typed.
func successors(u trainer, file string) []typed {
	up := []string{"--cluster-file=" + file, "--steps-image=" + u.steps, "--gpus-per-node=1"}
	const upSays, noProgram = "is kept until", "the image has no "
	const timeForACheck = 30 * time.Second
	check := []string{within(timeForACheck)}
	h := []string{"--name=h-kim"}
	hKim := filepath.Join(repository(u.T), "clusters", "h-kim.yaml")
	return []typed{
		{command: "validate clusters/CLUSTER.yaml", says: "valid: "},
		{command: "init --to=-", says: "cluster:"}, {command: "init CLUSTER --to=-", says: "name: local"},
		{command: "preflight --cluster-file=clusters/CLUSTER.yaml --output=yaml", more: []string{"--steps-image=" + u.steps},
			says: "kind: StatefulSet"},
		{command: "preflight --cluster-file=clusters/CLUSTER.yaml --mode=tcp --output=yaml", more: []string{"--steps-image=" + u.steps},
			says: "kind: StatefulSet"},
		{command: "preflight --cluster-file=clusters/CLUSTER.yaml --mode=rdma --output=yaml", file: hKim,
			more: []string{"--image=" + trainingImage, "--steps-image=" + u.steps}, says: "openshift.io/eno5np0rdma"},
		{command: "admin clusters/CLUSTER.yaml --scc=nccl-scc", file: hKim, says: `resourceNames: \["nccl-scc"\]`},
		{command: "admin clusters/CLUSTER.yaml --pod-account=h-kim-sa --scc=nccl-scc", file: hKim, says: `name: "h-kim-sa"`},
		{command: "admin clusters/CLUSTER.yaml --reboot-pool=worker", file: hKim, says: "(?m)^kind: MachineConfig"},
		{command: "preflight --cluster-file=clusters/CLUSTER.yaml", more: []string{"--gpus-per-node=1"}, code: anyCode, says: "permissions"},
		{command: "preflight --nodes=2", more: []string{"--cluster-file=" + file, "--gpus-per-node=1"}, code: anyCode, says: "free now: "},
		{command: "run . train.py --nodes=2", more: []string{"--run-name=from-scripts", "--gpus-per-node=1", "--check-fabric=false"},
			says: "Verdict: Succeeded"},
		{command: "runs", says: "from-scripts"}, {command: "status", says: "(?i)succeeded"}, {command: "status RUN", says: "(?i)succeeded"},
		{command: "logs RUN", says: "trained"}, {command: "logs RUN --rank=0", says: "trained"}, {command: "logs RUN --follow", says: "trained"},
		{command: "receipt RUN", says: "(?i)succeeded"}, {command: "fetch RUN", more: []string{"--to=fetched"}},
		{command: "fetch RUN FILE", more: []string{"--to=one-file"}}, {command: "claims", says: "ml-dev-workspace"},
		{command: "runs --trend", code: anyCode},

		{command: "up --nodes=1", more: up, says: upSays},
		{command: "up --nodes=1 --services=all", more: up, says: "Services on node 0 are reached by"},
		{command: "open vscode", code: command.Failed, says: noProgram}, {command: "open vscode --show-password", code: command.Failed,
			says: noProgram},
		{command: "open jupyter", code: command.Failed, says: noProgram}, {command: "open tensorboard", code: command.Failed, says: noProgram},
		{command: "down", says: "GPUs free"},

		{command: "up --cluster-file=clusters/CLUSTER.yaml --mode=tcp --nodes=2", more: up[1:], says: upSays},
		{command: "up", more: up, says: upSays}, {command: "up --mode=tcp", more: up, says: upSays},
		{command: "up --mode=auto", more: up, says: upSays},
		{command: "up --nodes=2", more: up, says: upSays}, {command: "up --namespace=NS", more: up, says: upSays},
		{command: "up --cluster-file=clusters/CLUSTER.yaml", more: up[1:], says: upSays},
		{command: "up --workspace-size=100Gi --datasets-size=500Gi", more: up, says: upSays},
		{command: "up --workspace-size=200Gi", more: up, says: "Claim ml-dev-workspace has 200Gi now"},
		{command: "up --datasets-size=1Ti", more: up, says: "Claim ml-dev-datasets has 1Ti now"},
		{command: "up --storage=rwx", more: up, says: upSays},
		{command: "sync", says: "is on 2 nodes"}, {command: "sync FOLDER", says: "is on 2 nodes"},
		{command: "sync ./workspace", says: "is on 2 nodes"},
		{command: "sync --watch", code: interrupted, says: "is on 2 nodes"},
		{command: "train train.py", says: `\[1 1\] rank 1 of 2`}, {command: "train train.py --launcher=deepspeed", says: `\[1 1\] rank 1 of 2`},
		{command: "train train.py --launcher=deepspeed-launcher", says: "rank 1 of 2"},
		{command: "train train.py --deepspeed-config=ds_config.json", says: `\[1 1\] rank 1 of 2`},
		{command: "train train.py NCCL_DEBUG=INFO", says: `\[1 1\] rank 1 of 2, INFO`},
		{command: "train test_multi_gpu.py --launcher=torchrun"},
		{command: "train h-kim-openshift.sh --launcher=command", says: `meets at ml-dev-env-0\.ml-dev-env-headless`},
		{command: "dev train.py", code: interrupted, says: `\[1 1\] rank 1 of 2`},
		{command: "port-forward", code: interrupted, says: "leads to port 5678 of node 0"},
		{command: "port-forward 5678", code: interrupted, says: "leads to port 5678 of node 0"},
		{command: "shell"}, {command: "shell 1"}, {command: "shell 0 -- ls /workspace/repo", says: "train.py"},
		{command: "shell 0 -- cat /workspace/.deepspeed/hostfile", says: "ml-dev-env-1.* slots=1"},
		{command: "shell 0 -- printenv GPUS_PER_NODE NUM_NODES NODE_RANK", says: "1\n2\n0"},
		{command: "shell 0 -- printenv MASTER_ADDR MASTER_PORT", says: "29500"},
		{command: "ssh-config", says: "Host mlenv-ml-dev-env-1"},
		{command: "shell 0 -- env", says: "NCCL_IB_DISABLE=1"}, {command: "shell 0 -- nvidia-smi", says: "H100"},
		{command: "shell 0 -- nvidia-smi topo -m", says: "CPU Affinity"},
		{command: "shell 0 -- printenv CUDA_VISIBLE_DEVICES", code: anyCode},
		{command: "check-fabric", more: check, says: "Fabric: "},
		{command: "rdma", says: "node 1: pod"}, {command: "rdma 0", says: "compute 9.0"}, {command: "doctor", code: anyCode},
		{command: "doctor --cluster-file=clusters/CLUSTER.yaml", code: anyCode},
		{command: "top", code: anyCode},
		{command: "up --services=all --routes", more: up, says: "Services on node 0 are reached by"},
		{command: "down --cluster-file=clusters/CLUSTER.yaml", says: "GPUs free"},

		{command: "up h-kim --nodes=1", more: up, says: upSays}, {command: "down", more: h, says: "GPUs free"},
		{command: "up h-kim --nodes=2", more: up, says: upSays}, {command: "up h-kim", more: up, says: upSays},
		{command: "up h-kim --mode=tcp", more: up, says: upSays},
		{command: "up --name=h-kim", more: up, says: upSays}, {command: "down", more: h, says: "GPUs free"},
	}
}

// successorsOverRDMA are typed by rdma-by-admin, in a namespace that an administrator has prepared.
func successorsOverRDMA(u trainer, file string) []typed {
	up := []string{"--cluster-file=" + file, "--steps-image=" + u.steps, "--gpus-per-node=1"}
	return []typed{
		{command: "admin clusters/CLUSTER.yaml", says: "kind: RoleBinding"},
		{command: "admin clusters/CLUSTER.yaml --attachments=copy", says: "kind: NetworkAttachmentDefinition"},
		{command: "up --mode=rdma", more: up, says: "Mode rdma"}, {command: "rdma --check", says: `node 0 \(.*: fine`}, {command: "down"},
		{command: "up h-kim --namespace=NS --mode=rdma", more: up, says: "Mode rdma"}, {command: "down", more: []string{"--name=h-kim"}},
	}
}

// successorsOfBuilds are typed by built-by-runs.
func successorsOfBuilds() []typed {
	var args []string
	for _, arg := range smallArgs {
		args = append(args, "--build-args="+arg)
	}
	return []typed{{command: "build --cluster-file=clusters/CLUSTER.yaml", more: args, says: "Nothing is built"}}
}

// successorsInEditors are typed by built-in-full, whose image has debugpy.
func successorsInEditors() []typed {
	return []typed{
		{command: "sync"}, {command: "train train.py --debug-rank=0", code: interrupted, says: "Rank 0 waits on node 0 for a debugger"},
	}
}

// fromScripts types the commands of docs/project/from-scripts.md, except those that other scenarios type.
func fromScripts(u trainer) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "project", "from-scripts.md"))
	if err != nil {
		u.Fatal(err)
	}
	file := u.clusterFile()
	all := successors(u, file)
	var known []string
	for _, t := range slices.Concat(all, successorsOverRDMA(u, file), successorsOfBuilds(), successorsInEditors()) {
		known = append(known, t.command)
	}
	for _, found := range regexp.MustCompile("`mlenv ([^`]+)`").FindAllStringSubmatch(string(content), -1) {
		if typed := found[1]; typed != "install" && !slices.Contains(known, typed) {
			u.Errorf("docs/project/from-scripts.md: no scenario types mlenv %s", typed)
		}
	}

	example, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "test_multi_gpu.py"))
	if err != nil {
		u.Fatal(err)
	}
	files := map[string]string{
		"train.py": "import os\nrank = os.environ['RANK']\nopen('result-' + rank, 'w').write('trained')\n" +
			"print('rank', rank, 'of', os.environ['WORLD_SIZE'] + ',', os.environ['NCCL_DEBUG'], 'trained', flush=True)\n",
		"ds_config.json":     "{}",
		"test_multi_gpu.py":  string(example),
		"h-kim-openshift.sh": "echo meets at $MASTER_ADDR\n",
	}
	dir := u.project(files)
	if err := os.CopyFS(filepath.Join(dir, "workspace"), os.DirFS(u.project(files))); err != nil {
		u.Fatal(err)
	}
	u.enters(dir, file, all...)
}

// enters types commands in dir. The words in capitals become those of the scenario.
func (u trainer) enters(dir, file string, commands ...typed) {
	u.Helper()
	for _, t := range commands {
		u.enter(dir, t, strings.NewReplacer("clusters/CLUSTER.yaml", cmp.Or(t.file, file), "FOLDER", dir, "FILE", "result-0",
			"CLUSTER", "local", "RUN", "from-scripts", "NS", u.namespace))
	}
}

func (u trainer) enter(dir string, t typed, words *strings.Replacer) {
	u.Helper()
	args, rest, dashed := strings.Cut(t.command, " -- ")
	all := append(strings.Fields(words.Replace(args)), t.more...)
	if dashed {
		all = append(append(all, "--"), strings.Fields(rest)...)
	}
	says := regexp.MustCompile(t.says)
	if t.code == interrupted {
		stop := u.untilItPrints(dir, says, all...)
		stop()
		return
	}
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	cmd := u.mlenvIn(ctx, dir, all...)
	if all[0] == "validate" { // it asks no cluster
		cmd.Args = append(cmd.Args[:2:2], all[1:]...)
	}
	out, err := cmd.CombinedOutput()
	if code := codeOf(err); t.code == anyCode && code != command.Done && code != command.Failed || t.code != anyCode && code != t.code {
		u.Errorf("mlenv %s: exit code %d, want %d:\n%s", t.command, code, t.code, shortened(string(out)))
	}
	if !says.Match(out) {
		u.Errorf("mlenv %s: want %s in the output:\n%s", t.command, says, shortened(string(out)))
	}
}

// matcher keeps what is written, and finds the pattern in its lines.
type matcher struct {
	mu      sync.Mutex
	text    strings.Builder
	pattern *regexp.Regexp
	found   chan []string
}

func (m *matcher) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text.Write(p)
	if found := m.pattern.FindStringSubmatch(m.text.String()); found != nil {
		select {
		case m.found <- found:
		default: // it was found before
		}
	}
	return len(p), nil
}

func (m *matcher) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

// untilItPrints starts mlenv and waits until a line of its output matches. stop sends it Ctrl-C, and waits for its end.
func (u trainer) untilItPrints(dir string, pattern *regexp.Regexp, args ...string) (stop func()) {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	u.Cleanup(cancel)
	_, stop = u.matching(ctx, dir, pattern, args...)
	return stop
}

// matching is untilItPrints that returns what the pattern found.
func (u trainer) matching(ctx context.Context, dir string, pattern *regexp.Regexp, args ...string) (found []string, stop func()) {
	u.Helper()
	cmd := u.mlenvIn(ctx, dir, args...)
	output := &matcher{pattern: pattern, found: make(chan []string, 1)}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it was interrupted, or the failure shows in its output
	}()
	select {
	case found = <-output.found:
	case <-ended:
		u.Fatalf("mlenv %s ended and printed no %s:\n%s", strings.Join(args, " "), pattern, shortened(output.String()))
	case <-ctx.Done():
		u.Fatalf("mlenv %s printed no %s:\n%s", strings.Join(args, " "), pattern, shortened(output.String()))
	}
	return found, func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		<-ended
	}
}
