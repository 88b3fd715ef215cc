// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// demoRun is the name of the demo's run in its output.
var demoRun = regexp.MustCompile(`(?m)^Run \S+/(demo-\S+) is started\.$`)

// demo runs the program of make demo as the first user of a new cluster: nothing is in its namespace, nobody has run a pod or
// resolved a name, and no node has an image. Its output must be the one in the README.
func demo(t *testing.T) {
	const namespace = "e2e-demo"
	root := repository(t)
	t.Cleanup(func() {
		if out, err := run(t, nil, stateDir+"/bin/kubectl", "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Errorf("deleting the namespace: %v: %s", err, out)
		}
	})
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "test", "localcluster", "demo", "run"), namespace)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the demo failed: %v\n%s", err, out)
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
