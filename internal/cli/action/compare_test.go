// SPDX-License-Identifier: Apache-2.0

package action

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-githubactions"
	tekton "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// ofRun returns a run with its receipt.
func ofRun(t *testing.T, number int, branch, revision string, loss float64) (*tekton.PipelineRun, *corev1.ConfigMap, receipt.Receipt) {
	t.Helper()
	name := fmt.Sprintf("train-%d", number)
	run := &tekton.PipelineRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(number), 0)),
		Labels:      map[string]string{"tekton.dev/pipeline": "train-multi-node"},
		Annotations: map[string]string{branchAnnotation: branch},
	}}
	run.Spec.Params = tekton.Params{{Name: "revision", Value: *tekton.NewStructuredValues(revision)}}
	run.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue})
	r := receipt.Receipt{
		Run: name, Namespace: "ns", Environment: "env", Verdict: receipt.Succeeded, Metrics: fmt.Appendf(nil, `{"loss": %g}`, loss),
		Training: &receipt.Training{Launcher: "torchrun", Script: "train.py", Nodes: 2, RanksPerNode: 4},
	}
	client := fake.NewClientset()
	if err := receipt.Write(t.Context(), client, r); err != nil {
		t.Fatal(err)
	}
	config, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), receipt.Name(name), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return run, config, r
}

// With compare-with the summary and the outputs show the run next to the newest one of the branch, or next to the run of that name, with
// a verdict. A pull request from a branch of the same name is no run of the branch.
func TestCompareWith(t *testing.T) {
	var runs, configs []runtime.Object
	for number, of := range map[int][3]any{1: {"main", "", 2.0}, 2: {"main", "", 2.0}, 3: {"", "main", 2.1}, 4: {"7/merge", "0123abc", 9.0}} {
		run, config, _ := ofRun(t, number, of[0].(string), of[1].(string), of[2].(float64))
		runs, configs = append(runs, run), append(configs, config)
	}
	_, _, now := ofRun(t, 9, "8/merge", "", 2.4)
	for _, tc := range []struct{ base, run, verdict, summary string }{
		{"main", "train-3", "Regression", "<code>2.4, there 2.1, 20.0% worse than the median of 3; want at most 5.0% worse</code>"},
		{"train-4", "train-4", "NoRegression", "<code>2.4, there 9, 73.3% better than the median of 1</code>"},
		{"feature/x", "", "Unknown", "compared with feature/x"},
		{"", "", "", "<h3>"},
	} {
		dir := t.TempDir()
		files := map[string]string{"GITHUB_OUTPUT": filepath.Join(dir, "output"), "GITHUB_STEP_SUMMARY": filepath.Join(dir, "summary")}
		getenv := func(name string) string { return files[name] }
		var out strings.Builder
		gh := githubactions.New(githubactions.WithWriter(&out), githubactions.WithGetenv(getenv))
		clients := &kube.Clients{Kube: fake.NewClientset(configs...), Tekton: tektonfake.NewSimpleClientset(runs...), Namespace: "ns"}
		a := &action{page: page{gh: gh, getenv: getenv}, clients: clients}
		if err := a.summarize(now, a.compare(t.Context(), tc.base, now)); err != nil {
			t.Fatal(err)
		}
		content, _ := os.ReadFile(files["GITHUB_OUTPUT"]) // missing without outputs
		outputs := string(content)
		summary, err := os.ReadFile(files["GITHUB_STEP_SUMMARY"])
		if err != nil || !strings.Contains(string(summary), tc.summary) {
			t.Errorf("%s: %v, summary %s\nwant %q", tc.base, err, summary, tc.summary)
		}
		for _, want := range []string{tc.run, tc.verdict} {
			if tc.base != "" && !strings.Contains(outputs, "\n"+want+"\n") || tc.base == "" && outputs != "" {
				t.Errorf("%s: outputs %s, want %q", tc.base, outputs, want)
			}
		}
		if start := strings.Index(outputs, "{"); tc.base != "" && !json.Valid([]byte(outputs[start:strings.LastIndex(outputs, "}")+1])) {
			t.Errorf("%s: the output comparison is no JSON: %s", tc.base, outputs)
		}
	}
}

// A base that cannot be read fails nothing.
func TestCompareWithoutRights(t *testing.T) {
	a, client, out := started(t)
	client.PrependReactor("list", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(tekton.Resource("pipelineruns"), "", errors.New("no"))
	})
	_, _, now := ofRun(t, 9, "main", "", 2)
	b := a.compare(t.Context(), "main", now)
	if b.Verdict != "Unknown" || !strings.Contains(out.String(), "::warning::The run was not compared with main") {
		t.Errorf("got %+v, log %s; want a warning", b, out)
	}
}
