// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/oidctest"
)

// githubAction runs the steps of action.yml as a runner does: a run that succeeds, one that fails,
// one whose job is cancelled in the middle, and wrong inputs.
func githubAction(u trainer) {
	u.kubectl("apply", "--filename=../../docs/examples/github/rights.yaml", "--namespace="+u.namespace)
	r := newRunner(u)
	r.step("mlenv").succeeded()

	r.inputs = map[string]string{"server": "https://10.223.0.2:6443", "cluster-file": "wrong.yaml"}
	wrong := r.step("train")
	wrong.failed("::error col=", "file=wrong.yaml", "input token: it is empty", "storage.mode")

	r.inputs = map[string]string{
		"server": "https://10.223.0.2:6443", "certificate-authority": r.authority, "token": r.token, "namespace": u.namespace,
		"repo-url": u.repo, "launcher": "command", "gpus-per-node": "1", "check-fabric": "false",
	}
	r.inputs["script"], r.inputs["env"], r.inputs["script-args"] = "e2e/says.py", "TEXT=a=b,c\nMORE=::error::no command\n", "one\ntwo words\n"
	r.inputs["deepspeed-config"] = "transformer/ds_zero2.json"
	said := r.step("train")
	said.succeeded("::group::train\n",
		"[0 -] ['--deepspeed', '--deepspeed_config', 'transformer/ds_zero2.json', 'one', 'two words'] a=b,c ::error::no command\n",
		"::endgroup::\n")
	r.inputs["deepspeed-config"] = ""
	e := u.end(said.outputs["run"])
	e.succeeded()
	for output, want := range map[string]string{
		"receipt": receipt.Name(e.run.Name), "verdict": "Succeeded", "reason": "", "commit": u.commit, "image": e.receipt.Image,
		"metrics": e.results["metrics"],
	} {
		u.equal("output "+output, said.outputs[output], want)
	}
	report, err := os.ReadFile(said.outputs["report"])
	if err != nil {
		u.Fatal(err)
	}
	u.mustContain(string(report), e.run.Name)
	u.mustContain(said.summary, "<h3>✅ <code>"+e.run.Name+"</code>: Succeeded</h3>", "<td><code>"+u.commit+"</code></td>",
		"<td><code>provision</code></td>")

	r.inputs["script"] = "e2e/error.py"
	r.step("train").failed("::error file=e2e/error.py,line=4,title=RankFailed::", "ValueError: the loss is nan at step 12")

	r.inputs["script"] = "e2e/hold.sh"
	killed := r.cancelled("[1 -] node 1 holds the environment\n")
	ended := r.step("end")
	ended.succeeded()
	e = u.end(killed.outputs["run"])
	u.equal("reason", e.receipt.Reason, string(fail.Cancelled))
	if !e.run.IsGracefullyCancelled() {
		u.Errorf("the run has spec.status %q, want it cancelled with its finally tasks", e.run.Spec.Status)
	}
	r.step("end").succeeded() // no run is left to end
	r.withoutStoredToken()
}

// withoutStoredToken runs the action with ID tokens of an issuer that stands in for GitHub's, and that the API server trusts by the
// configuration in docs/automate/github.md. The rights come from docs/examples/github/oidc.yaml.
func (r *runner) withoutStoredToken() {
	r.Helper()
	const audience, machine = "https://10.223.0.2:6443", "10.223.0.1" // on the cluster's bridge
	issuer := oidctest.Start(r.T, machine, "repo:octocat/model:ref:refs/heads/main")
	file := stateDir + "/authentication.yaml"
	before, err := os.ReadFile(file)
	if err != nil {
		r.Fatal(err)
	}
	trusts := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %q, audiences: [%q], certificateAuthority: %q}
  claimMappings:
    username: {claim: sub, prefix: "github:"}
`, issuer.URL, audience, issuer.CA)
	if err := os.WriteFile(file, []byte(trusts), 0o600); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o600); err != nil {
			r.Error(err)
		}
	})
	rights, err := os.ReadFile("../../docs/examples/github/oidc.yaml")
	if err != nil {
		r.Fatal(err)
	}
	r.applyText(strings.ReplaceAll(string(rights), "ORGANIZATION/REPOSITORY", "octocat/model"))

	bundle := filepath.Join(r.TempDir(), "issuer.crt")
	if err := os.WriteFile(bundle, issuer.CA, 0o600); err != nil {
		r.Fatal(err)
	}
	r.environ = append(r.environ, "SSL_CERT_FILE="+bundle)
	for name, value := range issuer.Environment() {
		r.environ = append(r.environ, name+"="+value)
	}
	r.inputs["token"], r.inputs["oidc-audience"], r.inputs["script"] = "", audience, "e2e/says.py"
	// The API server reads its configuration again within a minute.
	ctx, cancel := r.within(timeForTheObjectToChange)
	defer cancel()
	said := r.step("train")
	for ctx.Err() == nil && strings.Contains(said.log, "title=PermissionDenied") {
		said = r.step("train")
	}
	said.succeeded("::add-mask::", "[0 -] ")
	e := r.end(said.outputs["run"])
	e.succeeded()
}

// runner is a folder with the layout of a GitHub runner, in which steps run.
type runner struct {
	trainer
	dir              string
	steps            map[string]actionStep
	defaults         map[string]string
	inputs           map[string]string
	token, authority string
	environ          []string
	files            int
}

// actionStep is a step of action.yml.
type actionStep struct {
	ID    string            `json:"id"`
	Run   string            `json:"run"`
	Shell string            `json:"shell"`
	If    string            `json:"if"`
	Env   map[string]string `json:"env"`
}

func newRunner(u trainer) *runner {
	u.Helper()
	content, err := os.ReadFile("../../action.yml")
	if err != nil {
		u.Fatal(err)
	}
	var action struct {
		Inputs map[string]struct {
			Default string `json:"default"`
		} `json:"inputs"`
		Runs struct {
			Steps []actionStep `json:"steps"`
		} `json:"runs"`
	}
	if err := yaml.Unmarshal(content, &action); err != nil {
		u.Fatal(err)
	}
	r := &runner{trainer: u, dir: u.TempDir(), steps: map[string]actionStep{}, defaults: map[string]string{}}
	for _, step := range action.Runs.Steps {
		r.steps[step.ID] = step
	}
	for name, input := range action.Inputs {
		r.defaults[name] = input.Default
	}
	for _, folder := range []string{"_temp/_runner_file_commands", "model/model"} {
		if err := os.MkdirAll(filepath.Join(r.dir, folder), 0o755); err != nil {
			u.Fatal(err)
		}
	}
	wrong := "cluster:\n  name: local\n  api: api\n  namespace: ml\ngpus:\n  per_node: 4\nstorage:\n  mode: shared\n"
	if err := os.WriteFile(filepath.Join(r.dir, "model/model/wrong.yaml"), []byte(wrong), 0o644); err != nil {
		u.Fatal(err)
	}
	r.token = strings.TrimSpace(u.kubectl("create", "token", "github", "--duration=1h"))
	authority := u.kubectl("config", "view", "--raw", "--minify", "--output=jsonpath={.clusters[0].cluster.certificate-authority-data}")
	decoded, err := base64.StdEncoding.DecodeString(authority)
	if err != nil {
		u.Fatal(err)
	}
	r.authority = string(decoded)
	return r
}

// stepRun is a finished step of the action.
type stepRun struct {
	*runner
	id, log, summary string
	outputs          map[string]string
	err              error
}

// step runs a step until it ends.
func (r *runner) step(id string) stepRun {
	r.Helper()
	return r.start(id, nil)
}

// cancelled runs step train until its log contains the text, and cancels the job as GitHub does:
// it interrupts the step, and kills it if it takes too long.
func (r *runner) cancelled(text string) stepRun {
	r.Helper()
	return r.start("train", func(log string, process *os.Process) error {
		if !strings.Contains(log, text) {
			return nil
		}
		if err := process.Signal(syscall.SIGINT); err != nil {
			return err
		}
		if strings.Contains(log, "The run is cancelled") {
			return process.Kill()
		}
		return nil
	})
}

// start runs a step as a runner does. watch gets the log so far.
func (r *runner) start(id string, watch func(log string, process *os.Process) error) stepRun {
	r.Helper()
	step := r.steps[id]
	// The condition is true: the step mlenv of each runner has succeeded.
	if step.Shell != "bash" || step.If != "" && step.If != "${{ always() && steps.mlenv.outcome == 'success' }}" {
		r.Fatalf("step %s has shell %q and condition %q, which this runner does not know", id, step.Shell, step.If)
	}
	r.files++
	prefix := filepath.Join(r.dir, "_temp", "_runner_file_commands", id+"-"+string(rune('a'+r.files)))
	script := prefix + ".sh"
	if err := os.WriteFile(script, []byte(step.Run), 0o644); err != nil {
		r.Fatal(err)
	}
	for _, file := range []string{"output", "summary"} {
		if err := os.WriteFile(prefix+"-"+file, nil, 0o644); err != nil {
			r.Fatal(err)
		}
	}
	cmd := exec.CommandContext(r.Context(), "bash", "--noprofile", "--norc", "-e", "-o", "pipefail", script)
	cmd.Dir = filepath.Join(r.dir, "model", "model")
	cmd.Env = append(os.Environ(), "CI=true", "GITHUB_ACTIONS=true", "GITHUB_SERVER_URL=https://github.com", "GITHUB_REPOSITORY=octocat/model",
		"GITHUB_RUN_ID=1",
		"GITHUB_SHA="+r.commit, "GITHUB_WORKSPACE="+cmd.Dir, "RUNNER_TEMP="+filepath.Join(r.dir, "_temp"), "GITHUB_OUTPUT="+prefix+"-output",
		"GITHUB_STEP_SUMMARY="+prefix+"-summary", "KUBECONFIG=")
	cmd.Env = append(cmd.Env, r.environ...)
	for name, value := range step.Env {
		cmd.Env = append(cmd.Env, name+"="+r.expand(value))
	}
	out, in, err := os.Pipe()
	if err != nil {
		r.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	in.Close()
	var log bytes.Buffer
	for buffer := make([]byte, 1<<16); ; {
		n, err := out.Read(buffer)
		log.Write(buffer[:n])
		if err == nil && watch != nil {
			err = watch(log.String(), cmd.Process)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.Error(err)
			}
			break
		}
	}
	d := stepRun{runner: r, id: id, err: cmd.Wait(), log: log.String(), outputs: map[string]string{}}
	out.Close()
	for file, into := range map[string]func(string){"output": d.readOutputs, "summary": func(text string) { d.summary = text }} {
		content, err := os.ReadFile(prefix + "-" + file)
		if err != nil {
			r.Fatal(err)
		}
		into(string(content))
	}
	return d
}

// expression matches an expression of GitHub.
var expression = regexp.MustCompile(`\$\{\{ (.*?) \}\}`)

// expand evaluates the expressions in a value of action.yml.
func (r *runner) expand(value string) string {
	return expression.ReplaceAllStringFunc(value, func(found string) string {
		switch name := expression.FindStringSubmatch(found)[1]; name {
		case "toJSON(inputs)":
			all := maps.Clone(r.defaults)
			maps.Copy(all, r.inputs)
			content, err := json.MarshalIndent(all, "", "  ")
			if err != nil {
				r.Fatal(err)
			}
			return string(content)
		case "github.action_path":
			return repository(r.T)
		case "github.action_repository":
			return "ml-dev-env/ml-dev-env"
		default:
			input, is := strings.CutPrefix(name, "inputs.")
			if !is {
				r.Fatalf("action.yml has the expression %q, which this runner does not know", name)
			}
			return r.inputs[input]
		}
	})
}

// outputValue matches a name and a value in the form in which a step writes them.
var outputValue = regexp.MustCompile(`(?s)(\S+)<<(\S+)\n(.*?)\n(\S+)\n`)

func (d *stepRun) readOutputs(text string) {
	for _, match := range outputValue.FindAllStringSubmatch(text, -1) {
		if match[2] == match[4] {
			d.outputs[match[1]] = match[3]
		}
	}
}

func (d stepRun) succeeded(parts ...string) {
	d.Helper()
	if d.err != nil {
		d.Fatalf("step %s: %v:\n%s", d.id, d.err, d.log)
	}
	d.says(parts...)
}

func (d stepRun) failed(parts ...string) {
	d.Helper()
	var exit *exec.ExitError
	if !errors.As(d.err, &exit) || exit.ExitCode() != 1 {
		d.Fatalf("step %s: %v, want exit code 1:\n%s", d.id, d.err, d.log)
	}
	d.says(parts...)
}

// says checks the log, which may contain a secret only in the lines that mask it.
func (d stepRun) says(parts ...string) {
	d.Helper()
	d.mustContain(d.log, parts...)
	if masked := strings.ReplaceAll(d.log, "::add-mask::"+d.token+"\n", ""); strings.Contains(masked, d.token) {
		d.Errorf("the log of step %s contains the token", d.id)
	}
}
