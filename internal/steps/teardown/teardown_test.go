// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cause"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/notify"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

func start() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }

func about(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name), Labels: objects.Labels("env")}
}

// task returns a TaskRun of train-1 that has ended.
func task(name, reason string, change func(*v1.TaskRun), results ...string) *v1.TaskRun {
	t := &v1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1-" + name,
		Labels:          map[string]string{"tekton.dev/pipelineRun": "train-1", "tekton.dev/pipelineTask": name},
		OwnerReferences: []metav1.OwnerReference{{UID: "uid-1"}}}}
	t.Status.StartTime, t.Status.CompletionTime = &metav1.Time{Time: start()}, &metav1.Time{Time: start().Add(90 * time.Second)}
	status := corev1.ConditionFalse
	if reason == "Succeeded" {
		status = corev1.ConditionTrue
	}
	t.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: status, Reason: reason, Message: "Tekton's words"})
	for i := 0; i < len(results); i += 2 {
		t.Status.Results = append(t.Status.Results, v1.TaskRunResult{Name: results[i], Value: *v1.NewStructuredValues(results[i+1])})
	}
	if change != nil {
		change(t)
	}
	return t
}

func pipelineRun(change ...func(*v1.PipelineRun)) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1"}}
	r.Status.StartTime = &metav1.Time{Time: start()}
	for _, c := range change {
		c(r)
	}
	return r
}

// place is a cluster with environment env, held by holder. The fake checks no UIDs and collects no garbage. Here a Lease's
// UID is checked, and its StatefulSet and pods are deleted with it, unless stuck is true.
type place struct {
	*teardown
	kube  *fake.Clientset
	stuck bool
	// atDeletion is when the Lease had last been renewed as it was deleted.
	atDeletion time.Time
}

func newPlace(t *testing.T, tasks []runtime.Object, known ...runtime.Object) *place {
	t.Helper()
	client := fake.NewClientset(known...)
	p := &place{kube: client}
	client.PrependReactor("delete", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion := action.(clienttesting.DeleteActionImpl)
		found, err := client.Tracker().Get(action.GetResource(), "ns", deletion.Name)
		if err != nil {
			return true, nil, err
		}
		if want := deletion.DeleteOptions.Preconditions; want == nil || *want.UID != found.(*coordinationv1.Lease).UID {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), deletion.Name, errors.New("another UID"))
		}
		if renewed := found.(*coordinationv1.Lease).Spec.RenewTime; renewed != nil {
			p.atDeletion = renewed.Time
		}
		if !p.stuck {
			p.collect()
		}
		return false, nil, nil
	})
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true,
			&authenticationv1.SelfSubjectReview{
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "h-kim"}}}, nil
	})
	log := slog.New(slog.DiscardHandler)
	clients := &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(tasks...), Namespace: "ns", InCluster: true}
	p.teardown = &teardown{clients: clients, log: log, now: func() time.Time { return start().Add(time.Hour) }, notify: func(notify.Event) {}}
	p.options.Name, p.options.Timeout = "env", timeForTheObjectsToGo
	p.options.Run.Name, p.options.Run.UID, p.options.Run.Task = "train-1", "uid-1", "teardown"
	return p
}

// timeForTheObjectsToGo is as long as a Task has.
const timeForTheObjectsToGo = time.Minute

func (p *place) collect() {
	_ = p.kube.Tracker().Delete(appsv1.SchemeGroupVersion.WithResource("statefulsets"), "ns", "env")
	for i := range 2 {
		_ = p.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", fmt.Sprint("env-", i))
	}
}

// held returns the Lease of a holder, which ended some time ago.
func held(by string) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(start())
	l := &coordinationv1.Lease{ObjectMeta: about("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: &by, RenewTime: &renewed,
		LeaseDurationSeconds: new(int32(600))}}
	l.Annotations = map[string]string{lease.HolderName: "holder " + by, lease.HolderKind: "PipelineRun"}
	return l
}

// live returns the environment's objects, with real agents in its pods.
func live(t *testing.T) ([]runtime.Object, []*agenttest.Node) {
	t.Helper()
	agents := agenttest.Start(t, 2)
	made := agents[0].Certificates()
	known := []runtime.Object{held("uid-1"),
		&appsv1.StatefulSet{ObjectMeta: about("env"),
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{}}}},
		&corev1.Secret{ObjectMeta: about("env-agent-client"), Data: map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert,
			"tls.key": made.ClientKey}},
		&corev1.PersistentVolumeClaim{ObjectMeta: about("env-workspace-env-0")},
	}
	for _, node := range agents {
		known = append(known,
			&corev1.Pod{ObjectMeta: about(node.Config.Pod), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP}})
	}
	return known, agents
}

// note writes what steps of train-1 note.
func (p *place) note(t *testing.T, parts ...receipt.Entry) {
	t.Helper()
	for _, part := range parts {
		if err := receipt.Note(t.Context(), p.kube, receipt.Start{Run: "train-1", Namespace: "ns", RunUID: "uid-1", Environment: "env",
			Started: start()}, part); err != nil {
			t.Fatal(err)
		}
	}
}

// left returns the Lease, StatefulSet, pods and claims that exist.
func (p *place) left(t *testing.T) (names []string) {
	t.Helper()
	ctx := context.Background()
	leases, err1 := p.kube.CoordinationV1().Leases("ns").List(ctx, metav1.ListOptions{})
	sets, err2 := p.kube.AppsV1().StatefulSets("ns").List(ctx, metav1.ListOptions{})
	pods, err3 := p.kube.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
	claims, err4 := p.kube.CoreV1().PersistentVolumeClaims("ns").List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for _, o := range leases.Items {
		names = append(names, "lease "+o.Name)
	}
	for _, o := range sets.Items {
		names = append(names, "statefulset "+o.Name)
	}
	for _, o := range pods.Items {
		names = append(names, "pod "+o.Name)
	}
	for _, o := range claims.Items {
		names = append(names, "claim "+o.Name)
	}
	return names
}

func TestVerdict(t *testing.T) {
	done := func(name string, results ...string) *v1.TaskRun { return task(name, "Succeeded", nil, results...) }
	byTimeout := func(c *v1.TaskRun) { c.Spec.StatusMessage = v1.TaskRunCancelledByPipelineTimeoutMsg }
	type verdict struct {
		Verdict receipt.Verdict
		Reason  fail.Reason
		Message string
	}
	for _, tc := range []struct {
		name  string
		tasks []runtime.Object
		want  verdict
	}{
		{"all went well", []runtime.Object{pipelineRun(), done("provision"), done("train"), task("teardown", "Running", nil)},
			verdict{receipt.Succeeded, "", ""}},
		{"the step says why", []runtime.Object{pipelineRun(), done("provision"), task("train", "Failed", nil, "reason", "RankFailed", "message",
			"rank 3 exited with 1")},
			verdict{receipt.Failed, "RankFailed", "rank 3 exited with 1"}},
		{"the step could not say", []runtime.Object{pipelineRun(), task("provision", "TaskRunImagePullFailed", nil)},
			verdict{receipt.Failed, "ImageUnavailable", "Tekton's words"}},
		{"the task's timeout", []runtime.Object{pipelineRun(), task("train", "TaskRunTimeout", nil)},
			verdict{receipt.Failed, "TrainingTimeout", "Tekton's words"}},
		{"the run's timeout", []runtime.Object{pipelineRun(), task("train", "TaskRunCancelled", byTimeout)},
			verdict{receipt.Failed, "TrainingTimeout", "Tekton's words"}},
		{"cancelled in a task", []runtime.Object{pipelineRun(), task("train", "TaskRunCancelled", nil)},
			verdict{receipt.Failed, "Cancelled", "Tekton's words"}},
		{"cancelled between tasks",
			[]runtime.Object{pipelineRun(func(r *v1.PipelineRun) { r.Spec.Status = v1.PipelineRunSpecStatusCancelledRunFinally }),
				done("provision")},
			verdict{receipt.Failed, "Cancelled", "the run was cancelled"}},
		{"nothing is known", nil, verdict{receipt.Failed, "Cancelled", "the run was deleted"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newPlace(t, tc.tasks).summarize(t.Context(), nil)
			if diff := cmp.Diff(tc.want, verdict{r.Verdict, r.Reason, r.Message}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func from(url string) func(*v1.TaskRun) {
	return func(t *v1.TaskRun) {
		t.Spec.Params = v1.Params{{Name: "repo-url", Value: *v1.NewStructuredValues(url)}}
	}
}

// No receipt names the folder that a user sent: runs of a folder are compared whatever has changed in it.
func TestRepositoryOfFolder(t *testing.T) {
	if got := receipt.RepositoryOf("folder:" + strings.Repeat("a", 64)); got != receipt.Folder {
		t.Errorf("got %q, want %q", got, receipt.Folder)
	}
}

// A receipt on a cluster warns of a program that hides its failure, with what lets it fail.
func TestReceiptOfAHiddenFailure(t *testing.T) {
	known, agents := live(t)
	for _, node := range agents {
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte("nosuch-launcher || true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		spec := agent.JobSpec{Run: "train-1", Launcher: agent.Command, Script: "train.sh", Nodes: 2, RanksPerNode: 1,
			LauncherWhy: "it was found out"}
		if _, err := node.Client.StartJob(t.Context(), "uid-1", spec); err != nil {
			t.Fatal(err)
		}
		if err := node.Client.WatchJob(t.Context(), "uid-1", func(agent.JobStatus) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	p := newPlace(t, []runtime.Object{pipelineRun(), task("train", "Succeeded", nil)}, known...)
	r, err := p.run(t.Context())
	if err != nil || r.Verdict != receipt.Succeeded || !strings.Contains(r.Warning, "the log of rank 0 on node 0 ends in a failure: ") ||
		!strings.HasSuffix(r.Warning, "not found. Next: "+cause.HiddenNext) {
		t.Errorf("got %s with the warning %q, %v; want Succeeded, the failure, and what to do", r.Verdict, r.Warning, err)
	}
	if r.Training == nil || r.Training.LauncherWhy != "it was found out" {
		t.Errorf("got %+v, want why the launcher was chosen", r.Training)
	}
}

// TestTeardownTwice tears down an environment in which a rank has failed, from start to end, twice.
func TestTeardownTwice(t *testing.T) {
	known, agents := live(t)
	for _, node := range agents {
		script := "echo \"hello from $NODE_RANK\"\n" + `[ $NODE_RANK = 1 ] || echo '{"step":7,"loss":2.5}' >> "$MLENV_METRICS_FILE"` +
			"\nif [ $NODE_RANK = 1 ]; then printf 'Traceback (most recent call last):\\n  File \"train.py\", line 9, in step\\nZeroDivisionError: " +
			"division by zero\\n'; exit 3; fi\n"
		if err := os.WriteFile(filepath.Join(node.Config.Paths.Workspace, "train.sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		spec := agent.JobSpec{Run: "train-1", Launcher: agent.Command, Script: "train.sh", Args: []string{"--lr=1"}, Nodes: 2, RanksPerNode: 1,
			Env: map[string]string{"MLENV_RESUME_FROM": "train-0"}}
		if _, err := node.Client.StartJob(t.Context(), "uid-1", spec); err != nil {
			t.Fatal(err)
		}
		if err := node.Client.WatchJob(t.Context(), "uid-1", func(agent.JobStatus) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	// Only node 1 has the report, because a check writes it to the first node that answers.
	if err := agents[1].Client.WriteRecord(t.Context(), "uid-1", agent.FabricReport, []byte(`{"verdict":"pass"}`)); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, []runtime.Object{pipelineRun(),
		task("provision", "Succeeded", nil),
		task("sync-repo", "Succeeded", from("https://me:hush@git.example.com/team/model.git")),
		task("train", "Failed", nil, "reason", "RankFailed", "message", "rank 1 on node 1 exited with 3"),
	}, known...)
	p.note(t,
		receipt.Entry{Task: "provision", Status: run.Succeeded, Image: "registry.test/train@sha256:1", Storage: "volumeClaimTemplates",
			Mode: "tcp", Constraint: "nccl-scc"},
		receipt.Entry{Task: "sync-repo", Status: run.Succeeded, Commit: "abc", Tree: "def"},
		receipt.Entry{Task: "train", Status: run.Failed, Final: true, Reason: fail.RankFailed, Message: "rank 1 on node 1 exited with 3",
			Started: start(), Ended: start().Add(90 * time.Second),
			Metrics: json.RawMessage(`{"loss":2.5}`), Cause: &cause.Culprit{Rank: 1, Node: 1}})
	p.options.Artifacts = filepath.Join(t.TempDir(), "artifacts")
	var events []string
	p.notify = func(e notify.Event) {
		events = append(events, fmt.Sprintf("%s %d %d %s %s %.0f", e.Kind, e.Attempt, e.Nodes, e.Verdict, e.Reason, e.Seconds))
	}

	var first receipt.Receipt
	for _, when := range []string{"at first", "again"} {
		got, err := p.run(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if diff := cmp.Diff([]string{"claim env-workspace-env-0"}, p.left(t)); diff != "" {
			t.Errorf("%s: objects (-want +got):\n%s", when, diff)
		}
		written, err := receipt.Read(t.Context(), p.kube, "ns", "train-1")
		if err != nil {
			t.Fatal(err)
		}
		asJSON := func(r receipt.Receipt) string { text, _ := json.Marshal(r); return string(text) }
		if diff := cmp.Diff(asJSON(got), asJSON(written)); diff != "" {
			t.Errorf("%s: what is written differs from what is returned (-returned +written):\n%s", when, diff)
		}
		if when == "at first" {
			first = written
		} else if diff := cmp.Diff(asJSON(first), asJSON(written)); diff != "" {
			t.Errorf("the second teardown lost what the first one knew (-first +again):\n%s", diff)
		}
	}

	if diff := cmp.Diff([]string{"end 1 2 Failed RankFailed 3600", "end 1 2 Failed RankFailed 3600"}, events); diff != "" {
		t.Errorf("events of both (-want +got):\n%s", diff)
	}
	if first.Verdict != receipt.Failed || first.Reason != "RankFailed" || first.Teardown != "all pods and GPUs were released" ||
		first.Commit != "abc" || first.Tree != "def" || first.Constraint != "nccl-scc" || len(first.Phases) != 3 {
		t.Errorf("receipt %+v", first)
	}
	if want := "https://git.example.com/team/model.git"; first.Repository != want {
		t.Errorf("repository %q: want %q, without the user", first.Repository, want)
	}
	if first.Fabric == nil || first.Fabric.Verdict != "pass" {
		t.Errorf("fabric %+v: want what is in the record", first.Fabric)
	}
	var nodes, ranks []string
	for _, n := range first.Nodes {
		nodes = append(nodes, fmt.Sprint(n.Node, " ", n.Pod, " ", n.KubernetesNode))
	}
	for _, r := range first.Ranks {
		ranks = append(ranks, fmt.Sprint(r.Rank, " ", r.Node, " ", r.Exit.Code, " ", len(r.Tail)))
	}
	if diff := cmp.Diff([]string{"0 env-0 node-0", "1 env-1 node-1"}, nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0 0 0 0", "1 1 3 4"}, ranks); diff != "" {
		t.Errorf("rank, node, exit code, lines kept (-want +got):\n%s", diff)
	}
	if first.Cause == nil || first.Cause.Rank != 1 || first.Cause.Python == nil || first.Cause.Python.Type != "ZeroDivisionError" {
		t.Errorf("cause %+v, want the ZeroDivisionError of rank 1", first.Cause)
	}
	if c := first.Curve; c == nil || len(c.Points) != 1 || *c.Points[0].Loss != 2.5 {
		t.Errorf("curve %+v, want the loss of step 7", c)
	}
	if diff := cmp.Diff(&receipt.Training{Launcher: agent.Command, Script: "train.sh", Args: []string{"--lr=1"}, Nodes: 2, RanksPerNode: 1,
		ResumedFrom: "train-0"}, first.Training); diff != "" {
		t.Errorf("training (-want +got):\n%s", diff)
	}
	if first.Record == nil || !slices.Equal(first.Record.Claims, []string{"env-workspace-env-0", "env-workspace-env-1"}) {
		t.Errorf("record %+v, want the claims of both nodes", first.Record)
	}
	for rank := range 2 {
		content, err := os.ReadFile(filepath.Join(p.options.Artifacts, fmt.Sprintf("rank-%d.log", rank)))
		if want := fmt.Sprintf("hello from %d\n", rank); err != nil || !strings.HasPrefix(string(content), want) {
			t.Errorf("the copied log of rank %d is %q, %v", rank, content, err)
		}
	}
}

// Ranks can write the record that agents read. Teardown releases the GPUs, whatever the record contains.
func TestForgedAnswers(t *testing.T) {
	forged := agent.JobStatus{ID: "uid-1", Node: 99, State: agent.Exited, Spec: agent.JobSpec{Nodes: 1 << 40, RanksPerNode: 1 << 40,
		Order: []int{7, -1}},
		Ranks: []agent.RankStatus{{Rank: 1, Node: 99, Exit: agent.Exit{Code: 1}, Ended: time.Now()}, {Rank: -5, Node: -5}}}
	for _, tc := range []struct {
		name, path string
		answer     any
	}{
		{"numbers of other nodes", "/v1/jobs/uid-1", forged},
		{"no ranks and no spec", "/v1/jobs/uid-1", agent.JobStatus{Node: -1}},
		{"another node's facts", "/v1/facts", agent.Facts{Health: agent.Health{Protocol: agent.Protocol}, Node: 99, Running: []string{"x"}}},
		{"a list in place of a status", "/v1/jobs/uid-1", []int{1}},
		{"a report of another shape", "/v1/records/uid-1/fabric.json", map[string]any{"verdict": []int{1}}},
		{"metrics without end", "/v1/jobs/uid-1/logs/metrics", strings.Repeat("[", 1<<20)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			known, agents := live(t)
			for _, node := range agents {
				node.Wrap(func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path != tc.path {
							next.ServeHTTP(w, r)
							return
						}
						_ = json.NewEncoder(w).Encode(tc.answer)
					})
				})
			}
			p := newPlace(t, []runtime.Object{pipelineRun(), task("train", "Failed", nil, "reason", "RankFailed", "message", "rank 1")}, known...)
			p.options.Artifacts = t.TempDir()
			if err := syscall.Mkfifo(filepath.Join(p.options.Artifacts, "rank-1.log"), 0o600); err != nil { // nothing reads it
				t.Fatal(err)
			}
			r, err := p.run(t.Context())
			if err != nil || r.Reason != "RankFailed" {
				t.Errorf("got %s, %v; want the train step's reason", r.Reason, err)
			}
			if diff := cmp.Diff([]string{"claim env-workspace-env-0"}, p.left(t)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			for _, n := range r.Nodes {
				if n.Node < 0 || n.Node > 1 {
					t.Errorf("the receipt has node %d, want the nodes that were asked", n.Node)
				}
			}
		})
	}
}

func TestGuarded(t *testing.T) {
	var none []int
	if err := guarded(func() error { return fmt.Errorf("%d", none[99]) }); !errors.Is(err, errPanic) {
		t.Errorf("got %v, want errPanic", err)
	}
}

func TestWhoseEnvironment(t *testing.T) {
	const person = "h-kim"
	for _, tc := range []struct {
		name   string
		holder string // "" for no Lease
		change func(*place)
		left   []string
		want   fail.Reason // "" for success
	}{
		{"nothing is there", "", nil, nil, ""},
		{"this run's", "uid-1", nil, nil, ""},
		{"another run's is left alone", "uid-2", nil, []string{"lease env"}, ""},
		{"a person tears a run's down", "uid-2", func(p *place) { p.options.Run.Name, p.options.Run.UID = "", "" }, []string{"lease env"},
			fail.EnvironmentBusy},
		{"by force", "uid-2", func(p *place) { p.options.Run.Name, p.options.Run.UID, p.options.Force = "", "", true }, nil, ""},
		{"a person's own", person, func(p *place) { p.options.Run.Name, p.options.Run.UID = "", "" }, nil, ""},
		{"replaced meanwhile", "uid-1", func(p *place) {
			p.kube.PrependReactor("delete", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
				other := held("uid-2")
				other.UID = "another"
				return false, nil, p.kube.Tracker().Update(action.GetResource(), other, "ns")
			})
		}, []string{"lease env"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var known []runtime.Object
			if tc.holder != "" {
				known = append(known, held(tc.holder))
			}
			p := newPlace(t, []runtime.Object{pipelineRun()}, known...)
			if tc.change != nil {
				tc.change(p)
			}
			r, err := p.run(t.Context())
			if tc.want == "" && (err != nil || r.Verdict != receipt.Succeeded) || tc.want != "" &&
				(fail.ReasonOf(err) != tc.want || fail.NextOf(err) == "") {
				t.Errorf("got %s, %v; want %q", r.Verdict, err, tc.want)
			}
			if diff := cmp.Diff(tc.left, p.left(t)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// Pods that stay hold GPUs, so teardown does not succeed, not even a second time.
func TestPodsThatStay(t *testing.T) {
	p := newPlace(t, []runtime.Object{pipelineRun()}, held("uid-1"), &corev1.Pod{ObjectMeta: about("env-0")})
	const timeThatPasses = 200 * time.Millisecond
	p.stuck, p.options.Timeout = true, timeThatPasses
	for _, when := range []string{"at first", "again, without a Lease"} {
		r, err := p.run(t.Context())
		if fail.ReasonOf(err) != fail.TeardownIncomplete || !strings.Contains(err.Error(), "not deleted: pod env-0") {
			t.Errorf("%s: got %s: %v, want TeardownIncomplete for env-0", when, fail.ReasonOf(err), err)
		}
		if r.Verdict != receipt.Failed || r.Reason != "TeardownIncomplete" || !strings.Contains(r.Teardown, "not deleted: pod env-0") {
			t.Errorf("%s: receipt %s, %s, %q", when, r.Verdict, r.Reason, r.Teardown)
		}
	}
	p.collect()
	if r, err := p.run(t.Context()); err != nil || r.Verdict != receipt.Succeeded {
		t.Errorf("when they are gone: %s, %v", r.Verdict, err)
	}
}

func TestKeep(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tasks []runtime.Object
		now   time.Time
		end   bool // the step gets SIGTERM while it waits
		says  bool // the log reports that the environment is kept
	}{
		{"until the lease ends", []runtime.Object{pipelineRun()}, start().Add(601 * time.Second), false, true},
		{"until it is cancelled", []runtime.Object{pipelineRun()}, start(), true, true},
		{"not where something failed", []runtime.Object{pipelineRun(), task("sync-repo", "Failed", nil)}, start(), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t, tc.tasks, held("uid-1"))
			p.options.Keep, p.now = true, func() time.Time { return tc.now }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			says := false
			p.log = slog.New(saying(func(message string) {
				if strings.Contains(message, "is kept until 2026-07-01T12:10:00Z") {
					says = true
					if tc.end {
						cancel()
					}
				}
			}))
			if _, err := p.run(ctx); err != nil {
				t.Error(err)
			}
			if says != tc.says || len(p.left(t)) != 0 {
				t.Errorf("the log reports that the environment is kept: %t, want %t; left is %v", says, tc.says, p.left(t))
			}
		})
	}
}

// The API server's clock is known to a second and may seem to go back. How long the release took is never negative.
func TestReleaseIsTimedHere(t *testing.T) {
	p := newPlace(t, []runtime.Object{pipelineRun()}, held("uid-1"))
	backwards := start().Add(time.Hour)
	p.now = func() time.Time {
		backwards = backwards.Add(-time.Second)
		return backwards
	}
	var said []string
	p.log = slog.New(saying(func(message string) { said = append(said, message) }))
	if _, err := p.run(t.Context()); err != nil {
		t.Error(err)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "free after ") || strings.Contains(text, "free after -") {
		t.Errorf("the log is %q, want a time that is not negative", text)
	}
}

// saying is a log handler that calls itself with every message.
type saying func(string)

func (s saying) Enabled(context.Context, slog.Level) bool      { return true }
func (s saying) Handle(_ context.Context, r slog.Record) error { s(r.Message); return nil }
func (s saying) WithAttrs([]slog.Attr) slog.Handler            { return s }
func (s saying) WithGroup(string) slog.Handler                 { return s }

// The last attempt ended when the run did. A node on which it did not start shows the attempt before it.
func TestAttempts(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }
	earlier := []agent.Attempt{{Attempt: 1, Started: at(1), Ended: at(5), Reason: "NodeLost", Message: "node 1 is gone"}}
	statuses := newestOf([]agent.JobStatus{
		{Node: 0, Started: at(7), Ended: at(9), Spec: agent.JobSpec{Attempts: earlier, Checkpoint: new("step-20")}},
		{Node: 1, Started: at(1), Ended: at(5)},
	})
	curve := &metrics.Curve{First: 21, Points: []metrics.Point{{Step: 30}}}
	r := receipt.Receipt{Reason: "RankFailed", Message: "rank 0 on node 0", Cause: &cause.Culprit{}, Curve: curve}
	addAttempts(&r, statuses, &earlier[0])
	want := append(slices.Clip(earlier), agent.Attempt{Attempt: 2, Started: at(7), Ended: at(9), Reason: "RankFailed",
		Message: "rank 0 on node 0", Node: new(0), Rank: new(0), Checkpoint: "step-20", First: new(21.0), Last: new(30.0)})
	if diff := cmp.Diff(want, r.Attempts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r = receipt.Receipt{}
	if addAttempts(&r, []agent.JobStatus{{}}, nil); r.Attempts != nil {
		t.Errorf("one attempt alone is listed: %+v", r.Attempts)
	}
	r.Curve = curve
	if addAttempts(&r, []agent.JobStatus{{Node: 1, Spec: agent.JobSpec{Attempts: earlier}}}, nil); r.Attempts[1].First != nil {
		t.Errorf("attempt %+v has the steps of the one before, whose metrics node 0 has", r.Attempts[1])
	}
	r = receipt.Receipt{Reason: fail.DiskFull, Message: "no space left"}
	addAttempts(&r, statuses, &agent.Attempt{Attempt: 2, Reason: fail.NodeLost})
	want = append(slices.Clip(earlier), agent.Attempt{Attempt: 2, Reason: fail.NodeLost},
		agent.Attempt{Attempt: 3, Reason: fail.DiskFull, Message: "no space left"})
	if diff := cmp.Diff(want, r.Attempts); diff != "" {
		t.Errorf("an attempt that no node has started (-want +got):\n%s", diff)
	}
}

// If the first pod of a step was lost with its node, the result and the time of the retried step are not the training's.
func TestFirstFailureStays(t *testing.T) {
	known, _ := live(t)
	again := task("train", "Failed", nil, "reason", "RankFailed", "message", "rank 0 lost its peers")
	again.Status.StartTime, again.Status.CompletionTime = &metav1.Time{Time: start().Add(14 * time.Minute)}, &metav1.Time{
		Time: start().Add(14*time.Minute + 5*time.Second)}
	p := newPlace(t, []runtime.Object{pipelineRun(), again}, known...)
	p.note(t, receipt.Entry{Task: "train", Status: run.Failed, Final: true, Reason: fail.NodeLost, Message: "node 1 is gone", Started: start(),
		Ended: start().Add(9 * time.Minute), Cause: &cause.Culprit{Rank: 1, Node: 1}})
	for _, when := range []string{"at first", "again, without a Lease"} {
		p.journal = receipt.Journal{} // this is another process
		r, err := p.run(t.Context())
		if err != nil || r.Reason != "NodeLost" || r.Message != "node 1 is gone" || len(r.Phases) != 1 || r.Phases[0].Reason != "NodeLost" ||
			r.Phases[0].Seconds != (9*time.Minute).Seconds() {
			t.Errorf("%s: %v, receipt %+v", when, err, r)
		}
		if r.Cause == nil || r.Cause.Rank != 1 {
			t.Errorf("%s: cause %+v, want the one that the step noted", when, r.Cause)
		}
	}
}
