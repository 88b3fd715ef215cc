// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// workstation is a machine with Python and torch, where scenarios that need only ranks are local runs: a pod of the training image, with
// mlenv, py-spy, and a copy of the repository. Its user has a number and no name.
type workstation struct {
	// folder is /work of the machine, by its path here.
	folder string
	// runs has what runs in progress print, and their end.
	runs map[string]*localRun
}

type localRun struct {
	*watched
	ended chan error
}

// localRuns runs scenarios without Tekton and nodes of their own, and make try of the README.
func localRuns(u trainer) {
	u.workstation = u.newWorkstation()
	for _, s := range []scenario{
		{"try", 0, readmeTry},
		{"rank-fails", 0, rankFails},
		{"hangs", 0, hangs},
		{"chaos", 0, chaosHere},
		{"restarted-by-a-rule", 0, restartedByARule},
		{"ended-by-rules", 0, endedByRules},
		{"saved-when-cancelled", 0, savedWhenCancelled},
		{"saved-at-timeout", 0, savedAtTimeout},
	} {
		u.Run(s.name, func(t *testing.T) {
			its := u
			its.T = t
			s.run(its)
		})
	}
}

// newWorkstation creates a workstation. pip trusts the cluster's CA, if the namespace has a ConfigMap with it.
func (u trainer) newWorkstation() *workstation {
	u.Helper()
	u.awaitPullSecret()
	u.applyText(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: work},
 spec: {accessModes: [ReadWriteMany], storageClassName: nfs-csi, resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: machine}, spec: {
  containers: [{name: main, image: "` + trainingImage + `", command: [sleep, infinity], workingDir: /work,
    env: [{name: HOME, value: /work/home}, {name: PATH, value: "/work/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"},
      {name: PIP_CERT, value: /ca/ca-bundle.crt}],
    volumeMounts: [{name: work, mountPath: /work}, {name: ca, mountPath: /ca}]}],
  terminationGracePeriodSeconds: 0, volumes: [{name: work, persistentVolumeClaim: {claimName: work}},
    {name: ca, configMap: {name: mlenv-trusted-ca, optional: true}}]}}
`)
	u.waitFor("condition=Ready", "pod/machine")
	m := &workstation{folder: u.volume("work"), runs: map[string]*localRun{}}
	root := repository(u.T)
	for to, from := range map[string]string{"repo": filepath.Join(root, "docs/examples"), "repo/e2e": filepath.Join("testdata", "repo")} {
		if err := os.CopyFS(filepath.Join(m.folder, to), os.DirFS(from)); err != nil {
			u.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(m.folder, "bin"), 0o755); err != nil {
		u.Fatal(err)
	}
	spy := u.TempDir()
	if out, err := run(u.T, nil, "go", "run", "-C", root, "./cmd/steps/release/pyspy", spy, "linux/amd64"); err != nil {
		u.Fatalf("fetching py-spy: %v\n%s", err, out)
	}
	for name, from := range map[string]string{"mlenv": u.mlenvProgram, agent.PySpy: filepath.Join(spy, "linux-amd64", agent.PySpy)} {
		program, err := os.ReadFile(from)
		if err := errors.Join(err, os.WriteFile(filepath.Join(m.folder, "bin", name), program, 0o755)); err != nil {
			u.Fatal(err)
		}
	}
	return m
}

// localFolder is where local runs lie, in the home of their user.
const localFolder = ".local/share/mlenv"

// workspace returns the path of the workspace, as ranks see it.
func (u trainer) workspace() string {
	if u.workstation != nil {
		return "/work/home/" + localFolder
	}
	return agent.Workspace
}

// on returns a command for the machine, in a folder of it.
func (u trainer) on(dir string, args ...string) *exec.Cmd {
	return exec.CommandContext(u.Context(), stateDir+"/bin/kubectl",
		append([]string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace,
			"exec", "machine", "--", "env", "--chdir=/work/" + dir}, args...)...)
}

// saysThere is says on the machine.
func (u trainer) saysThere(code int, args ...string) (stdout, stderr string) {
	u.Helper()
	if args[0] == "run" {
		args = slices.Insert(slices.Clone(args), 1, "--local")
	}
	var out, problems strings.Builder
	cmd := u.on("repo", append([]string{"mlenv"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if got := codeOf(cmd.Run()); got != code {
		u.Fatalf("mlenv %v: exit code %d, want %d\n%s%s", args, got, code, shortened(out.String()), problems.String())
	}
	return out.String(), problems.String()
}

// startThere starts a local run, with the params that such a run has.
func (u trainer) startThere(script string, params ...string) (name string) {
	u.Helper()
	base := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(script), filepath.Ext(script)), "_", "-")
	name = fmt.Sprintf("%s-%d", base, len(u.workstation.runs))
	args := []string{"mlenv", "run", ".", script, "--local", "--run-name=" + name}
	var own []string
	for _, param := range params {
		param = strings.TrimPrefix(param, "--param=")
		switch key, value, _ := strings.Cut(param, "="); key {
		case "script-args":
			own = append(own, strings.Split(value, ",")...)
		case "gpus-per-node":
			args = append(args, "--ranks-per-node="+value)
		default:
			args = append(args, "--"+param)
		}
	}
	u.runThere(name, append(append(args, "--"), own...)...)
	return name
}

// runThere starts mlenv run on the machine.
func (u trainer) runThere(name string, args ...string) {
	u.Helper()
	run := &localRun{&watched{wanted: "Run " + name + " on this machine", seen: make(chan struct{})}, make(chan error, 1)}
	cmd := u.on("repo", args...)
	cmd.Stdout, cmd.Stderr = run, run
	go func() { run.ended <- cmd.Run() }()
	select {
	case <-run.seen:
	case err := <-run.ended:
		u.Fatalf("%v: %v\n%s", args, err, run)
	}
	u.workstation.runs[name] = run
}

// endThere waits for the end of a local run.
func (u trainer) endThere(name string) ending {
	u.Helper()
	run := u.workstation.runs[name]
	err := <-run.ended
	run.ended <- err // for whoever asks again
	out, _ := u.saysThere(command.Done, "receipt", name, "--output=json")
	e := ending{trainer: u, run: &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}}
	if err := json.Unmarshal([]byte(out), &e.receipt); err != nil {
		u.Fatalf("%v: %s", err, out)
	}
	if ok := codeOf(err) == command.Done; ok != (e.receipt.Reason == "") {
		u.Errorf("exit code %d, and the receipt has the reason %q:\n%s", codeOf(err), e.receipt.Reason, run)
	}
	e.equal("what remains", e.receipt.Teardown, "all processes of the run have ended")
	return e
}

// cancelThere types the command that mlenv cancel prints for a local run.
func (u trainer) cancelThere(name string) {
	u.Helper()
	_, problems := u.says("", command.Failed, "cancel", name)
	next := cancelsLocally.FindString(problems)
	if out, err := u.on("repo", "sh", "-c", next).CombinedOutput(); err != nil || next == "" {
		u.Fatalf("%s: %q: %v: %s", problems, next, err, out)
	}
}

var cancelsLocally = regexp.MustCompile(`kill \d+`)

// readmeTry runs make try of the README in a fresh clone of the last commit, with an empty home, and compares the output with the page. It
// is compiled here, because the machine has neither make nor Go.
func readmeTry(u trainer) {
	clone := filepath.Join(u.workstation.folder, "clone")
	caches, err := run(u.T, nil, "go", "env", "GOCACHE", "GOMODCACHE")
	if err != nil {
		u.Fatal(err)
	}
	builds, modules, _ := strings.Cut(strings.TrimSpace(caches), "\n")
	for _, args := range [][]string{{"git", "clone", "--quiet", repository(u.T), clone},
		{"env", "HOME=" + u.TempDir(), "GOCACHE=" + builds, "GOMODCACHE=" + modules, "make", "-C", clone, "bin/mlenv"},
		{"chmod", "-R", "a+rwX", clone}} {
		if out, err := run(u.T, nil, args[0], args[1:]...); err != nil {
			u.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	printed, err := u.on("clone", "HOME=/work/home-of-try", "test/try").CombinedOutput()
	if err != nil {
		u.Fatalf("test/try: %v\n%s", err, printed)
	}
	noStandIn(u.T, string(printed))
	blocks := testedPages(u.T, repository(u.T))["README.md"]
	at := slices.IndexFunc(blocks, func(b block) bool { return b.local })
	if at < 0 || blocks[at].commands()[0].text != "make try" || !blocks[at+1].output {
		u.Fatal("the README has no make try with its output")
	}
	if line := missing(blocks[at+1].text, string(printed)); line != "" {
		u.Errorf("%s: %q was not printed:\n%s", blocks[at+1], line, printed)
	}
	_, err = os.Stat(filepath.Join(clone, "bin", "try.html"))
	if err != nil || !strings.Contains(string(printed), "/work/clone/bin/try.html") {
		u.Errorf("%v, want a report whose path is printed:\n%s", err, printed)
	}
}
