// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

func paramSpec(name, value string) v1.ParamSpec {
	spec := v1.ParamSpec{Name: name, Type: v1.ParamTypeString}
	if value != "needed" {
		spec.Default = v1.NewStructuredValues(value)
	}
	return spec
}

func pipeline() *v1.Pipeline {
	return &v1.Pipeline{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: Pipeline},
		Spec: v1.PipelineSpec{Params: v1.ParamSpecs{
			paramSpec("repo-url", "needed"), paramSpec("script", "needed"), paramSpec("nodes", "2"),
			{Name: "script-args", Type: v1.ParamTypeArray, Default: &v1.ParamValue{Type: v1.ParamTypeArray}},
			{Name: "env", Type: v1.ParamTypeArray, Default: &v1.ParamValue{Type: v1.ParamTypeArray}},
			{Name: "stop-if", Type: v1.ParamTypeArray, Default: &v1.ParamValue{Type: v1.ParamTypeArray}},
			{Name: "restart-if", Type: v1.ParamTypeArray, Default: &v1.ParamValue{Type: v1.ParamTypeArray}}, paramSpec("max-restarts", "0"),
			paramSpec("build-timeout", "30m"), paramSpec("start-timeout", "10m"), paramSpec("timeout", "40m"),
		}},
	}
}

func fakes() *kube.Clients {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	return &kube.Clients{Kube: kubefake.NewClientset(namespace), Tekton: fake.NewSimpleClientset(pipeline()), Namespace: "ns"}
}

func TestInstalled(t *testing.T) {
	clients := fakes()
	if found, err := Installed(t.Context(), clients); err != nil || found.Name != Pipeline {
		t.Errorf("got %v, %v; want the pipeline", found, err)
	}
	clients.Tekton = fake.NewSimpleClientset()
	for namespace, want := range map[string]string{"ns": "looking for pipeline ns/train-multi-node",
		"nowhere": "looking for namespace nowhere"} {
		clients.Namespace = namespace
		if _, err := Installed(t.Context(), clients); fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want InvalidInput and %q", err, want)
		}
	}
}

// A run has a name before it is created, or a lost answer would leave a run that nobody knows. Its receipt begins with it.
func TestStartNamesTheRun(t *testing.T) {
	clients := fakes()
	asked := pipeline()
	asked.Spec.Params = append(asked.Spec.Params, paramSpec("name", "ml-dev-env"))
	started, err := Start(t.Context(), clients,
		Request{Pipeline: asked, Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}}})
	if err != nil || !strings.HasPrefix(started.Name, Pipeline+"-") || started.GenerateName != "" {
		t.Fatalf("got %+v, %v; want a name after the pipeline", started, err)
	}
	m, err := receipt.ReadJournal(t.Context(), clients.Kube, "ns", started.Name)
	if err != nil || m.RunUID != string(started.UID) || m.Environment != "ml-dev-env" {
		t.Errorf("the journal is %+v, %v; want that of the run, with the environment of the pipeline's default", m, err)
	}
}

// If the answer to the creation is lost for good, the user learns the name of the run that may have started.
func TestStartWithoutAnswer(t *testing.T) {
	clients := fakes()
	tekton := fake.NewSimpleClientset()
	name := ""
	tekton.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name = action.(clienttesting.CreateAction).GetObject().(*v1.PipelineRun).Name
		return true, nil, &url.Error{Op: "Post", URL: "https://api.example.com:6443/", Err: syscall.ECONNRESET}
	})
	clients.Tekton = tekton
	_, err := Start(t.Context(), clients, Request{Pipeline: pipeline(), Values: map[string][]string{
		"repo-url": {"https://example.com/r"}, "script": {"train.py"}}})
	want := "mlenv cancel " + name + " -n ns"
	if fail.ReasonOf(err) != fail.APIServerUnreachable || !strings.Contains(fail.NextOf(err), want) {
		t.Errorf("got %v; next: %s; want %q", err, fail.NextOf(err), want)
	}
}

// A run names the user who started it, for those who sum GPU-hours. A request that is used again stays as it is.
func TestStartNotesTheUser(t *testing.T) {
	client := kubefake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{
			Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "kim"}}}, nil
	})
	clients := fakes()
	clients.Kube = client
	asked := pipeline()
	asked.Spec.Params = append(asked.Spec.Params, paramSpec("name", "ml-dev-env"))
	request := Request{Pipeline: asked, Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}},
		Annotations: map[string]string{"a": "b"}}
	started, err := Start(t.Context(), clients, request)
	if err != nil || run.FromPipelineRun(started).User != "kim" || started.Annotations["a"] != "b" || len(request.Annotations) != 1 {
		t.Fatalf("got annotations %v of the request %v, %v; want kim and b", started.Annotations, request.Annotations, err)
	}
	m, err := receipt.ReadJournal(t.Context(), client, "ns", started.Name)
	if err != nil || m.ToReceipt(receipt.Standing{}, time.Time{}).User != "kim" {
		t.Errorf("the journal is %+v, %v; want the user", m, err)
	}
}

func TestStart(t *testing.T) {
	clients := fakes()
	started, err := Start(t.Context(), clients, Request{Pipeline: pipeline(), Name: "mine", Values: map[string][]string{
		"repo-url": {"https://example.com/r"}, "script": {"train.py"}, "script-args": {"--a", "b c"}, "timeout": {"24h"},
	}, Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	want := v1.PipelineRunSpec{
		PipelineRef: &v1.PipelineRef{Name: Pipeline},
		Params: v1.Params{
			{Name: "repo-url", Value: v1.ParamValue{Type: "string", StringVal: "https://example.com/r"}},
			{Name: "script", Value: v1.ParamValue{Type: "string", StringVal: "train.py"}},
			{Name: "script-args", Value: v1.ParamValue{Type: "array", ArrayVal: []string{"--a", "b c"}}},
			{Name: "timeout", Value: v1.ParamValue{Type: "string", StringVal: "24h"}},
		},
		TaskRunTemplate: v1.PipelineTaskRunTemplate{ServiceAccountName: ServiceAccount},
		Timeouts: &v1.TimeoutFields{Pipeline: &metav1.Duration{Duration: 25*time.Hour + 15*time.Minute},
			Tasks: &metav1.Duration{Duration: 25*time.Hour + 10*time.Minute}, Finally: &metav1.Duration{Duration: 5 * time.Minute}},
	}
	if diff := cmp.Diff(want, started.Spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "app.kubernetes.io/part-of": "ml-dev-env", "tekton.dev/pipeline": "train-multi-node"},
		started.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	// The timeouts of the run are long enough for the first step, even if it starts late.
	of, err := run.Get(t.Context(), clients.Tekton, "ns", "mine")
	if err != nil {
		t.Fatal(err)
	}
	of.Started = time.Unix(0, 0)
	need := run.Needs{Build: 30 * time.Minute, Start: 10 * time.Minute, Training: 24 * time.Hour, Teardown: run.TeardownTime}
	if err := run.CheckTimeouts(of, need, of.Started.Add(25*time.Minute)); err != nil {
		t.Error(err)
	}
}

// The fake ignores contexts: here the context ends while the fake creates the run.
func TestStartIsNotLeftHalfWay(t *testing.T) {
	clients := fakes()
	ctx, cancel := context.WithCancel(t.Context())
	tekton := clients.Tekton.(*fake.Clientset)
	seen := errors.New("no run was made")
	tekton.PrependReactor("create", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		seen = ctx.Err()
		return false, nil, nil
	})
	made, err := Start(ctx, clients,
		Request{Pipeline: pipeline(), Name: NewName(), Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}})
	if err != nil || made == nil || !errors.Is(seen, context.Canceled) {
		t.Errorf("got %v, %v (%v); want the run, to cancel it", made, err, seen)
	}
}

func TestStartAgain(t *testing.T) {
	clients := fakes()
	request := Request{Pipeline: pipeline(), Name: "mine", Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}}
	first, err := Start(t.Context(), clients, request)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Start(t.Context(), clients, request)
	if err != nil || again.Name != first.Name {
		t.Errorf("the same again: %v, %v; want the existing run", again, err)
	}
	request.Values = map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"other"}}
	request.ServiceAccount = "other"
	if _, err := Start(t.Context(), clients, request); fail.ReasonOf(err) != fail.InvalidInput ||
		!strings.Contains(err.Error(), "another service account, param script") {
		t.Errorf("another of that name: %v, want InvalidInput with what differs", err)
	}
}

func TestMistakesAreToldAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name    string
		request Request
		want    []string
	}{
		{"params", Request{Values: map[string][]string{"skript": {"s"}, "nodes": {"1", "2"}}},
			[]string{"param repo-url is missing", "param script is missing", "param nodes has 2 values: want one",
				"pipeline train-multi-node has no param skript; did you mean script?"}},
		{"times", Request{Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}, "timeout": {"soon"},
			"start-timeout": {"-1m"}}},
			[]string{`param timeout: "soon": want a duration`, `param start-timeout: "-1m": want`}},
		{"types", Request{Values: map[string][]string{"repo-url": {"me:secret@"}, "script": {"--epochs"}, "nodes": {"two"}}},
			[]string{"param repo-url: reading repository URL", `param script: "--epochs": want the path of a script`,
				`param nodes: "two": want a number, or 0 for the default`}},
		{"rules", Request{Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"},
			"stop-if":    {"loss is nan", "loss > much after 100 steps", "gpu_use < 5% for 0m", "gpu_use < 5% for 20m"},
			"restart-if": {"no checkpoint", "loss is nan"}}},
			[]string{`param stop-if: "loss > much after 100 steps": much: want a number`,
				`param stop-if: "gpu_use < 5% for 0m": 0m: want a duration`,
				`param restart-if: "no checkpoint": want loss is nan, `, "params: restart-if has rules and max-restarts is 0: want max-restarts of " +
					"at least 1",
				`params: rule "loss is nan" is in stop-if and in restart-if: want it in one of them`}},
		{"launcher command", Request{Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"},
			"launcher": {"command"}, "require-rendezvous": {"fail"}}},
			[]string{"param require-rendezvous: fail: the programs of launcher command are not checked: want warn"}},
		{"variables",
			Request{Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"},
				"env": {"A=1", "--env-secret-dir=/var/run/secrets", "B", "=x", "C D=1", "RANK=3"}}},
			[]string{`param env: "--env-secret-dir=/var/run/secrets": want KEY=VALUE`, `"B": want`, `"=x": want`, `"C D=1": want`, "variable RANK"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clients := fakes()
			tc.request.Pipeline = pipeline()
			_, err := Start(t.Context(), clients, tc.request)
			if fail.ReasonOf(err) != fail.InvalidInput {
				t.Fatalf("got %v, want InvalidInput", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
			if made, err := clients.Tekton.TektonV1().PipelineRuns("ns").List(t.Context(), metav1.ListOptions{}); err != nil || len(made.Items) > 0 {
				t.Errorf("%v were created, %v", made.Items, err)
			}
		})
	}
}

// The timeouts of a new run include the time that its ranks have to save, once for the tasks and once for the teardown.
func TestTimeoutsIncludeTheGrace(t *testing.T) {
	withGrace := pipeline()
	withGrace.Spec.Params = append(withGrace.Spec.Params, paramSpec("stop-grace", "30s"))
	values := map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}
	before := run.TimeoutsFor(stepDeadlines(pipeline(), values))
	values["stop-grace"] = []string{"20m"}
	after := run.TimeoutsFor(stepDeadlines(withGrace, values))
	const grace = 20 * time.Minute
	if after.Tasks != before.Tasks+grace || after.Finally != before.Finally+grace || after.Pipeline != before.Pipeline+2*grace {
		t.Errorf("got %+v, before %+v; want 20m more for the tasks and for the teardown", after, before)
	}
	for value, valid := range map[string]bool{"30s": true, "1h": true, "0s": false, "61m": false, "ten minutes": false} {
		values["stop-grace"] = []string{value}
		if _, err := Params(withGrace, values); (err == nil) != valid {
			t.Errorf("stop-grace=%s: got %v, want it valid: %t", value, err, valid)
		}
	}
}

func TestCancel(t *testing.T) {
	clients := fakes()
	made, err := Start(t.Context(), clients,
		Request{Pipeline: pipeline(), Name: "mine", Values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}})
	if err != nil {
		t.Fatal(err)
	}
	other := made.DeepCopy()
	other.UID = "another"
	for _, tc := range []struct {
		of   *v1.PipelineRun
		want v1.PipelineRunSpecStatus
	}{{other, ""}, {made, v1.PipelineRunSpecStatusCancelledRunFinally}, {made, v1.PipelineRunSpecStatusCancelledRunFinally}} {
		if err := Cancel(t.Context(), clients, tc.of, false); err != nil {
			t.Fatal(err)
		}
		got, err := clients.Tekton.TektonV1().PipelineRuns("ns").Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil || got.Spec.Status != tc.want {
			t.Errorf("spec.status is %q, %v; want %q", got.Spec.Status, err, tc.want)
		}
	}
	// Later, the user does not want to wait for the ranks.
	if err := Cancel(t.Context(), clients, made, true); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Get(t.Context(), clients.Tekton, "ns", "mine"); err != nil || !got.Cancelled || !got.Now || got.NoFinally {
		t.Errorf("got %+v, %v; want it cancelled now", got, err)
	}
	if err := clients.Tekton.TektonV1().PipelineRuns("ns").Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Cancel(t.Context(), clients, made, false); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

// FuzzParams gives a pipeline any values: the accepted values are the given ones, and no variable can be a flag.
func FuzzParams(f *testing.F) {
	f.Add("env", "A=1")
	f.Add("env", "--env-secret-dir=/x")
	f.Add("script-args", "--lr=1")
	f.Add("timeout", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		values := map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}
		values[name] = []string{value}
		params, err := Params(pipeline(), values)
		if err != nil {
			if fail.ReasonOf(err) != fail.InvalidInput {
				t.Errorf("got %v, want InvalidInput", err)
			}
			return
		}
		if name == "env" && (strings.HasPrefix(value, "-") || !strings.Contains(value, "=")) {
			t.Errorf("%q was accepted as a variable", value)
		}
		if diff := cmp.Diff(values, Values(&v1.PipelineRun{Spec: v1.PipelineRunSpec{Params: params}})); diff != "" {
			t.Errorf("the values (-want +got):\n%s", diff)
		}
	})
}
