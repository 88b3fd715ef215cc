// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bare is the cluster of make demo before the demo completes it.
var bare = []string{"--tekton=false", "--tkn=false", "--networks=false", "--training-image=false"}

// demoRun is the name of the demo's run in its output.
var demoRun = regexp.MustCompile(`(?m)^Run \S+/(demo-\S+) is started\.$`)

// nextCommand is a command at the end of the demo's output.
var nextCommand = regexp.MustCompile(`(?m)^  (export|bin/mlenv) .*$`)

// demo runs the program of make demo as the first user of a new cluster: nothing is in its namespace, nobody has run a pod or
// resolved a name, and no node has an image. Its output must be the one in docs/start/demo.md.
func demo(t *testing.T) {
	const namespace = "e2e-demo"
	root := repository(t)
	t.Cleanup(func() {
		if out, err := run(t, nil, stateDir+"/bin/kubectl", "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Errorf("deleting the namespace: %v: %s", err, out)
		}
	})
	started := starts(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "test", "localcluster", "demo", "run"), namespace)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the demo failed: %v\n%s", err, out)
	}
	if again := starts(t); again != started {
		t.Errorf("the API server was started %d times before the demo, and %d after it: the demo builds while it completes the cluster", started,
			again)
	}
	page := demoOutput(t, root)
	for i, line := range page {
		page[i] = strings.NewReplacer(" ml-dev-env/", " "+namespace+"/").Replace(line)
	}
	// These tasks run in parallel, so their lines have no order.
	for _, task := range []string{"[sync-repo]", "[check-fabric]"} {
		others := slices.DeleteFunc(slices.Clone(page), func(line string) bool { return strings.HasPrefix(line, task) })
		if line := missing(others, string(out)); line != "" {
			t.Errorf("docs/start/demo.md has the line %q, which the demo did not print:\n%s", line, out)
		}
	}
	name := demoRun.FindSubmatch(out)
	if name == nil {
		t.Fatalf("the demo started no run:\n%s", out)
	}
	u := user{T: t, namespace: namespace}
	u.mustContain(u.kubectl("get", "configmap", string(name[1])+"-receipt", `--output=jsonpath={.data.receipt\.json}`),
		`"verdict": "Succeeded"`)
	report, err := os.ReadFile(filepath.Join(root, "bin", "demo.html"))
	if err != nil || !strings.Contains(string(report), string(name[1])) {
		t.Errorf("the report of the run: %v, %d bytes without the run's name", err, len(report))
	}
	tryNext(t, root, string(out), string(name[1]))
}

// starts returns how often the API server was started.
func starts(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(stateDir + "/logs/kube-apiserver.log")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), "Golang settings")
}

// tryNext types the commands that the demo ends with, in a folder with what they need of the checkout. The last one would be a whole
// run: it is a dry run here.
func tryNext(t *testing.T, root, out, name string) {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(filepath.Join(root, "bin"), filepath.Join(dir, "bin")),
		os.CopyFS(filepath.Join(dir, "docs/examples"), os.DirFS(filepath.Join(root, "docs/examples")))); err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(out, "Try next")
	noStandIn(t, after)
	commands := strings.Join(nextCommand.FindAllString(after, -1), "\n")
	for _, part := range []string{"export KUBECONFIG=", "mlenv runs ", "mlenv fetch " + name, "mlenv run ", "--like=" + name} {
		if !strings.Contains(commands, part) {
			t.Errorf("the demo ends with the commands\n%s\nwant %q among them", commands, part)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", strings.Replace(commands, "mlenv run ", "mlenv run --dry-run ", 1))
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "KUBECONFIG=") })
	printed, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(printed), name) {
		t.Errorf("the commands\n%s\nend with %v, want run %s in\n%s", commands, err, name, printed)
	}
	if _, err := os.Stat(filepath.Join(dir, name, "logs")); err != nil {
		t.Errorf("mlenv fetch has fetched no logs: %v", err)
	}
}

// noStandIn fails if what was printed would put the programs of the local cluster, with its stand-in for nvidia-smi, into the user's PATH.
func noStandIn(t *testing.T, printed string) {
	t.Helper()
	for _, text := range []string{"export PATH", "bin/nvidia-smi"} {
		if strings.Contains(printed, text) {
			t.Errorf("%q is among what was printed, want it left out:\n%s", text, printed)
		}
	}
}

// demoOutput returns what the demo's page says that make demo prints.
func demoOutput(t *testing.T, root string) []string {
	t.Helper()
	demo := false
	for _, b := range testedPages(t, root)["demo.md"] {
		if demo && b.output {
			return b.text
		}
		demo = slices.Contains(b.text, "make demo")
	}
	t.Fatal("docs/start/demo.md does not show what make demo prints")
	return nil
}
