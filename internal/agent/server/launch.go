// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pylib"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/rank"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// launch is the supervisor's command line, which starts a node's ranks.
type launch struct {
	args []string
	env  map[string]string
	dir  string
	// keep runs a program of the image before the ranks: the job's packages may run code in it, which must not outlive the job.
	keep func(context.Context, *exec.Cmd) (agent.Exit, error)
}

// planLaunch makes the launch of a job on this node.
func (c Config) planLaunch(id string, spec agent.JobSpec, folder jobFolder, recorded string) (launch, error) {
	l := launch{dir: folder.dir}
	port := cmp.Or(spec.MasterPort, agent.MasterPort)
	world := agent.World{Master: c.Host(0), Port: port, Nodes: spec.Nodes, RanksPerNode: spec.RanksPerNode}
	l.env = c.environment(spec.Env, spec.SecretEnv, world.Variables(), map[string]string{
		"NODE_RANK":      strconv.Itoa(spec.Position(c.Node)),
		"RANKS_PER_NODE": strconv.Itoa(spec.RanksPerNode),
		// Without a run each job still has a name of its own, for example for its folder of checkpoints.
		"MLENV_RUN":          cmp.Or(spec.Run, id),
		"MLENV_ATTEMPT":      strconv.Itoa(spec.Attempt()),
		rank.RunDirVariable:  recorded,
		"MLENV_METRICS_FILE": record.Dir(recorded).Metrics(),
		rank.JobVariable:     id,
		rank.NodeVariable:    strconv.Itoa(c.Node),
		rank.TracerVariable:  strconv.Itoa(os.Getpid()),
		"PYTHONUNBUFFERED":   "1",
	})
	l.env["PWD"] = l.dir // a program that starts others may read it
	setDefault(l.env, faultHandler, "1")
	if spec.NoHook {
		l.env[pylib.HookVariable] = pylib.None
	}
	if spec.LauncherWhy != "" {
		l.env[pylib.AutoVariable] = "shim"
	}
	deepSpeed := spec.Launcher == agent.DeepSpeed || spec.Launcher == agent.DeepSpeedLauncher
	if given := spec.Env[agent.CUDADevices]; deepSpeed && given != "" && len(c.devicesOf(spec)) < spec.RanksPerNode {
		return l, fail.Becausef(fail.InvalidInput, "starting the job: %s=%s names fewer GPUs than a node has ranks, which are %d",
			agent.CUDADevices, given, spec.RanksPerNode)
	}
	ranks := c.placeRanks(spec, l.env)
	if name := spec.Checkpoint; name != nil && *name == "" && spec.CheckpointFolder(id) != "" {
		l.env[agent.CheckpointVariable] = ""
	} else if path := spec.CheckpointPath(id); path != "" {
		l.env[agent.CheckpointVariable] = filepath.Join(c.Paths.Workspace, path)
	}
	if len(folder.earlier) > 0 {
		l.env[agent.EarlierWorkVariable] = strings.Join(folder.earlier, ":")
	}
	// These logs show which network the ranks really use.
	nccl.SetLogFiles(l.env, record.Dir(recorded).NCCLLogs(c.Node))
	if folder.venv != "" && spec.Script != c.Program { // which makes virtual environments, by the image's Python
		l.env["VIRTUAL_ENV"] = folder.venv
		l.env["PATH"] = filepath.Join(folder.venv, "bin") + ":" + l.env["PATH"]
	}
	python, err := agent.FindProgram("python3", l.env["PATH"])
	if err != nil && (spec.Launcher != agent.Command || agent.IsPython(spec.Script)) {
		return l, fail.Becausef(fail.ContainerFailed, "starting the job: the training image has no python3 in PATH (%s)", l.env["PATH"])
	}
	l.keep = func(ctx context.Context, command *exec.Cmd) (agent.Exit, error) {
		return (&processes{record: recorded, node: c.Node}).runKept(ctx, c.Program, command)
	}
	if spec.Launcher == agent.Command {
		spec.Args = l.expand(spec.Args)
	}
	process, err := l.process(spec, python)
	if err != nil {
		return l, err
	}
	if spec.DebugRank != nil {
		if err := c.debug(spec, python, l); err != nil {
			return l, err
		}
	}
	if deepSpeed && !spec.NoLocalRank {
		l.env[rank.LocalRankAtVariable] = strconv.Itoa(len(process) - len(spec.Args))
	}
	var launcher []string
	switch spec.Launcher {
	case agent.DeepSpeedLauncher:
		// The launcher sets CUDA_VISIBLE_DEVICES to the node's entries, and only counts other nodes' entries.
		hosts := map[string][]string{}
		for node := range spec.Nodes {
			hosts[c.Host(node)] = c.devicesOf(spec)
		}
		info, err := json.Marshal(hosts)
		if err != nil {
			return l, err
		}
		launcher = []string{python, "-u", "-m", "deepspeed.launcher.launch", "--world_info=" + base64.URLEncoding.EncodeToString(info),
			fmt.Sprintf("--node_rank=%d", spec.Position(c.Node)), "--master_addr=" + c.Host(0), fmt.Sprintf("--master_port=%d", port), "--no_python",
			"--no_local_rank"}
	case agent.TorchrunLauncher:
		launcher = []string{python, "-u", "-m", "torch.distributed.run", fmt.Sprintf("--nnodes=%d", spec.Nodes),
			fmt.Sprintf("--nproc-per-node=%d", spec.RanksPerNode),
			fmt.Sprintf("--node-rank=%d", spec.Position(c.Node)), "--master-addr=" + c.Host(0), fmt.Sprintf("--master-port=%d", port),
			"--max-restarts=0", "--no-python"}
	}
	l.args = slices.Concat([]string{c.Program, "launch"}, ranks, []string{"--"}, launcher, []string{c.Program, "rank", "--"}, process)
	return l, nil
}

// process returns the command line of one rank.
func (l launch) process(spec agent.JobSpec, python string) ([]string, error) {
	script := spec.Script
	if module := agent.Module(script); module != "" {
		return l.module(spec, module, python)
	}
	inTree := script
	if !filepath.IsAbs(script) {
		inTree = filepath.Join(l.dir, script)
	}
	info, err := os.Stat(inTree)
	switch {
	case errors.Is(err, fs.ErrNotExist) && spec.Launcher == agent.Command && !strings.Contains(script, "/"):
		program, err := agent.FindProgram(script, l.env["PATH"])
		if err != nil {
			return nil, fail.Becausef(fail.ScriptNotFound, "starting the job: %q is neither in the tree nor a program in PATH (%s)", script,
				l.env["PATH"])
		}
		return append([]string{program}, spec.Args...), nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fail.Advise(fail.Becausef(fail.ScriptNotFound, "starting the job: %q is not in the tree, which has %s", script,
			tree.Nearby(tree.Names(l.dir), script)),
			"name the script by its path from the top of the repository")
	case err != nil:
		return nil, fail.Because(fail.ScriptNotFound, fmt.Errorf("starting the job: %w", err))
	case info.IsDir():
		return nil, fail.Becausef(fail.ScriptNotFound, "starting the job: %q is a folder; want a script", script)
	}
	command := []string{inTree}
	switch filepath.Ext(script) {
	case ".py":
		// Python shows this name in tracebacks.
		command = []string{python, "-u", script}
	case ".sh":
		if command = shebang(inTree, info, script); command != nil {
			break
		}
		shell, err := agent.FindProgram("bash", l.env["PATH"])
		if err != nil {
			shell = "/bin/sh"
		}
		command = []string{shell, script}
	}
	return append(command, spec.Args...), nil
}

// ofNode are the variables that may stand in arguments of launcher command, which no shell reads.
var ofNode = regexp.MustCompile(`\$(?:\{(NODE_RANK|MASTER_ADDR|MASTER_PORT|NUM_NODES|NNODES|RANKS_PER_NODE)\}|` +
	`(NODE_RANK|MASTER_ADDR|MASTER_PORT|NUM_NODES|NNODES|RANKS_PER_NODE)\b)`)

// expand replaces the variables of the node in arguments. NNODES is torchrun's name for NUM_NODES.
func (l launch) expand(args []string) (expanded []string) {
	for _, arg := range args {
		expanded = append(expanded, ofNode.ReplaceAllStringFunc(arg, func(found string) string {
			name := strings.Trim(found, "${}")
			if name == "NNODES" {
				name = "NUM_NODES"
			}
			return l.env[name]
		}))
	}
	return expanded
}

// shebang returns the command line that the kernel would make of an executable script's first line, nil without one that can be used.
func shebang(path string, info fs.FileInfo, script string) []string {
	const longest, mayRun = 256, 0o111 // the kernel's bound
	if info.Mode()&mayRun == 0 {
		return nil
	}
	file, err := claimfile.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	begin := make([]byte, longest)
	n, _ := io.ReadFull(file, begin)
	line, _, whole := strings.Cut(string(begin[:n]), "\n")
	interpreter, argument, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "#!")), " ")
	if _, err := os.Stat(interpreter); !whole || !strings.HasPrefix(line, "#!/") || strings.HasSuffix(line, "\r") || err != nil {
		return nil
	}
	if argument = strings.TrimSpace(argument); argument != "" {
		return []string{interpreter, argument, script}
	}
	return []string{interpreter, script}
}

// findModule exits with 3 if Python cannot run the module of its argument. It imports nothing: a package may need minutes for that,
// and fail. Modules of packages that are installed may have no file of their own.
// It is isolated (-I), so that no file of the tree stands for one of Python's, and gets the folders that the ranks search.
const findModule = `import importlib.util, os, site, sys
if sys.prefix == sys.base_prefix:
    site.addsitedir(site.getusersitepackages())
sys.path[:0] = [os.path.abspath(entry) for entry in sys.argv[2].split(":") if entry]
top, *rest = sys.argv[1].split(".")
spec = importlib.util.find_spec(top)
def has(folder):
    path = os.path.join(folder, *rest)
    own = os.path.realpath(folder).startswith(os.getcwd() + os.sep)
    return not own or os.path.exists(path + ".py") or os.path.exists(os.path.join(path, "__main__.py"))
sys.exit(0 if spec and (not rest or any(map(has, spec.submodule_search_locations or []))) else 3)`

// module returns the command line of a rank that runs a module. Processes that the rank starts find the repository's packages too.
func (l launch) module(spec agent.JobSpec, module, python string) ([]string, error) {
	ours, given, _ := strings.Cut(l.env["PYTHONPATH"], ":") // first the folder of package pylib
	l.env["PYTHONPATH"] = strings.TrimSuffix(ours+":"+l.dir+":"+given, ":")
	const missing, patience = 3, 30 * time.Second // for python to look for the module on a slow volume
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	find := exec.Command(python, "-I", "-c", findModule, module, l.env["PYTHONPATH"])
	find.Dir, find.Env = l.dir, agent.Environ(l.env)
	if exit, err := l.keep(ctx, find); err == nil && exit.Code == missing {
		return nil, fail.Advise(fail.Becausef(fail.ScriptNotFound, "starting the job: Python finds no module %s; the tree has %s", module,
			tree.Nearby(tree.Names(l.dir), agent.ModuleFiles(module)[0])),
			"name the module from the top of the repository; for packages in another folder, such as src, set PYTHONPATH=src for the ranks")
	}
	return append([]string{python, "-u", "-m", module}, spec.Args...), nil
}

// scriptAt is where the script, or -m and the module, is in the command line of a Python rank, after the interpreter and -u.
const scriptAt = 2

// debug makes one rank wait for a debugger, and the others for that rank.
func (c Config) debug(spec agent.JobSpec, python string, l launch) error {
	if slices.Contains(spec.Ranks(c.Node), *spec.DebugRank) {
		const patience = time.Minute // for python to import debugpy on a busy node
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var output boundedOutput
		find := exec.Command(python, "-c", "import debugpy")
		find.Dir, find.Env, find.Stdout, find.Stderr = l.dir, agent.Environ(l.env), &output, &output
		exit, err := l.keep(ctx, find)
		if err == nil && exit != (agent.Exit{}) {
			err = fmt.Errorf("exit code %d", exit.Code)
		}
		if err != nil {
			return fail.Advise(fail.Becausef(fail.InvalidInput, "starting the job: rank %d cannot wait for a debugger: %s has no debugpy: %w: %s",
				*spec.DebugRank, python, err, output),
				"add debugpy to the requirements file that the param requirements names, or to the image")
		}
	}
	l.env[rank.DebugVariable], l.env[rank.DebugAtVariable] = strconv.Itoa(*spec.DebugRank), strconv.Itoa(scriptAt)
	// By default DeepSpeed's ranks wait for each other 10 or 30 minutes.
	if _, given := l.env["DEEPSPEED_TIMEOUT"]; !given && !spec.Deadline.IsZero() {
		l.env["DEEPSPEED_TIMEOUT"] = strconv.Itoa(max(1, int(math.Ceil(time.Until(spec.Deadline).Minutes()))))
	}
	return nil
}
