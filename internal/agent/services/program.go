// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"path/filepath"
	"strconv"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// behind is the distance from the gate's port to the port of the program behind it.
const behind = 10000

type program struct {
	executable string
	// path of the executable, "" if the image does not have it.
	path string
	args []string
	env  []string
	// dir is its working folder, which the service creates.
	dir string
	// listens is the address of the program itself.
	listens string
	// gate, or nil, listens for the program on the public address.
	gate   *gate
	public string
}

// program returns the command line of a service. It contains no credential, because every process on the node can read it.
//
// The arguments of code-server require the password whatever its configuration says. TensorBoard has no authentication, and a
// configuration in the image can turn Jupyter's off: these two run behind the agent's gate.
func (o Options) program(s agent.Service, credential string) program {
	p := program{executable: s.Name, dir: o.Workspace, public: hostPort(o.Public, s.Port), listens: hostPort(o.Loopback, s.Port)}
	shell := o.find("bash")
	if shell == "" {
		shell = "/bin/sh"
	}
	// The user ID has no entry in /etc/passwd.
	env := map[string]string{"SHELL": shell}
	maps.Copy(env, o.Environ())
	switch s.Name {
	case agent.CodeServer:
		p.args = []string{
			"--bind-addr=" + p.public, "--auth=password", "--disable-telemetry", "--disable-update-check",
			// The workspace's programs run on these nodes anyway.
			"--disable-workspace-trust", o.Workspace,
		}
		// code-server removes it from the environment of its children.
		env["PASSWORD"] = credential
	case agent.Jupyter:
		p.executable = "jupyter-lab"
		p.listens = hostPort(o.Loopback, s.Port+behind)
		p.gate = newGate(s, credential, p.listens, "token "+credential)
		p.args = []string{
			"--no-browser", "--ServerApp.allow_root=True", "--ServerApp.ip=" + o.Loopback, "--ServerApp.port=" + strconv.Itoa(s.Port+behind),
			"--ServerApp.port_retries=0",
			// Requests have the users' host name, not the loopback address.
			"--ServerApp.allow_remote_access=True",
			"--ServerApp.root_dir=" + o.Workspace,
			// By default it starts a login shell, whose profile drops the image's PATH.
			`--ServerApp.terminado_settings={"shell_command":["` + shell + `"]}`,
		}
		env["JUPYTER_TOKEN_FILE"] = filepath.Join(o.Dir, s.Key)
		// Jupyter writes the token there, and it must not stay on the claim.
		env["JUPYTER_RUNTIME_DIR"] = filepath.Join(o.Run, "jupyter")
	case agent.TensorBoard:
		p.listens = hostPort(o.Loopback, s.Port+behind)
		p.gate = newGate(s, credential, p.listens, "")
		p.dir = filepath.Join(o.Workspace, filepath.Base(agent.TensorBoardDir))
		p.args = []string{"--logdir=" + p.dir, "--host=" + o.Loopback, "--port=" + strconv.Itoa(s.Port+behind)}
	}
	if p.gate != nil && o.Used != nil {
		p.gate.used = o.Used
	}
	p.path = o.find(p.executable)
	p.env = agent.Environ(env)
	return p
}

func (o Options) find(name string) string {
	path, err := agent.FindProgram(name, o.Environ()["PATH"])
	if err != nil {
		return ""
	}
	return path
}
