package services

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// behind is added to the port of a service to get the one that its program
// listens on, where the agent stands before it.
const behind = 10000

// program is how a service is started.
type program struct {
	executable string
	// path of the executable, "" where the image does not have it.
	path string
	args []string
	env  []string
	// dir is where it works; it is made.
	dir string
	// listens is where the program itself answers, from within the node.
	listens string
	// gate, if there is one, stands before the program at the public address.
	gate   *gate
	public string
}

// program is how the service is started. A credential is never among the
// arguments, which everybody on the node can read.
//
// code-server asks for its password whatever its own configuration says, because
// the arguments overrule it. TensorBoard knows no authentication, and a
// configuration in the image can turn Jupyter's off: the agent's gate stands
// before these two.
func (o Options) program(s agent.Service, credential string) program {
	p := program{executable: s.Name, dir: o.Workspace, public: join(o.Public, s.Port), listens: join(o.Loopback, s.Port)}
	shell := o.find("bash")
	if shell == "" {
		shell = "/bin/sh"
	}
	// The user ID has no entry in /etc/passwd that would name one.
	env := map[string]string{"SHELL": shell}
	maps.Copy(env, o.Environ())
	switch s.Name {
	case agent.CodeServer:
		p.args = []string{
			"--bind-addr=" + p.public, "--auth=password", "--disable-telemetry", "--disable-update-check",
			// What lies in the workspace runs on these nodes anyway.
			"--disable-workspace-trust", o.Workspace,
		}
		// code-server takes it out of the environment of what it starts itself.
		env["PASSWORD"] = credential
	case agent.Jupyter:
		p.executable = "jupyter-lab"
		p.listens = join(o.Loopback, s.Port+behind)
		p.gate = newGate(s, credential, p.listens, "token "+credential)
		p.args = []string{
			"--no-browser", "--ServerApp.allow_root=True", "--ServerApp.ip=" + o.Loopback, "--ServerApp.port=" + port(s.Port+behind), "--ServerApp.port_retries=0",
			// It sees people's own name for it, not the loopback address.
			"--ServerApp.allow_remote_access=True",
			"--ServerApp.root_dir=" + o.Workspace,
			// Its own choice is a login shell, whose profile forgets the image's PATH.
			`--ServerApp.terminado_settings={"shell_command":["` + shell + `"]}`,
		}
		env["JUPYTER_TOKEN_FILE"] = filepath.Join(o.Dir, s.Key)
		// It writes the token in there, which must not stay on the claim.
		env["JUPYTER_RUNTIME_DIR"] = filepath.Join(o.Run, "jupyter")
	case agent.TensorBoard:
		p.listens = join(o.Loopback, s.Port+behind)
		p.gate = newGate(s, credential, p.listens, "")
		p.dir = filepath.Join(o.Workspace, filepath.Base(agent.TensorBoardDir))
		p.args = []string{"--logdir=" + p.dir, "--host=" + o.Loopback, "--port=" + port(s.Port+behind)}
	}
	p.path = o.find(p.executable)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		p.env = append(p.env, key+"="+env[key])
	}
	return p
}

// find is the path of a program in the PATH of what people start, "" for none.
func (o Options) find(name string) string {
	path, err := agent.FindProgram(name, o.Environ()["PATH"])
	if err != nil {
		return ""
	}
	return path
}
