// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// tekton is an API server with a stand-in for Tekton and the steps: it ends a run when as many are in progress as wanted, or when no
// more come.
type tekton struct {
	server  *apitest.Server
	clients *kube.Clients
	// together is how many runs are in progress before the oldest one ends; 0 ends none but those that are cancelled.
	together, total int
	// failing is a run that fails.
	failing string

	mu       sync.Mutex
	created  []string
	progress []string
	most     int
	// several is closed when as many runs as wanted are in progress.
	several chan struct{}
	wanted  int
	// at has the environments of runs in progress, each once.
	at   map[string]string
	seen map[types.UID]bool
}

const runsPath = "/apis/tekton.dev/v1/namespaces/ns/pipelineruns/"

func newTekton(t *testing.T) *tekton {
	t.Helper()
	shared := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
		Name: env.Of(&kube.Clients{}, objects.DefaultName).Workspace},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: launch.ServiceAccount},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}
	k := &tekton{server: apitest.Start(t, shared, account), at: map[string]string{}, seen: map[types.UID]bool{}}
	k.clients = k.server.Clients(nil)
	k.server.Changed = func(path string, object apitest.Object) {
		if name, ok := strings.CutPrefix(path, runsPath); ok && object != nil {
			k.changed(t, name)
		}
	}
	return k
}

func (k *tekton) changed(t *testing.T, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of, err := k.clients.Tekton.TektonV1().PipelineRuns("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil || of.IsDone() {
		return
	}
	if !k.seen[of.UID] {
		k.seen[of.UID] = true
		k.created = append(k.created, name)
		k.progress = append(k.progress, name)
		k.most = max(k.most, len(k.progress))
		if other := k.at[environmentOf(of)]; other != "" {
			t.Errorf("runs %s and %s are in one environment", other, name)
		}
		k.at[environmentOf(of)] = name
		if k.several != nil && len(k.progress) == k.wanted {
			close(k.several)
			k.several = nil
		}
	}
	switch {
	case of.IsGracefullyCancelled():
		k.end(t, of, receipt.Receipt{Verdict: receipt.Failed, Reason: fail.Cancelled, Message: "it was cancelled"})
	case k.together > 0 && (len(k.progress) == k.together || len(k.created) == k.total):
		for _, oldest := range slices.Clone(k.progress) {
			k.succeed(t, oldest)
			if len(k.created) < k.total {
				break
			}
		}
	}
}

// succeed ends a run as its script would: the loss is smaller with a larger lr.
func (k *tekton) succeed(t *testing.T, name string) {
	of, err := k.clients.Tekton.TektonV1().PipelineRuns("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	losses := map[string]float64{name: 2.5}
	if strings.Contains(strings.Join(launch.Values(of)["script-args"], " "), "--lr=3e-4") {
		losses[name] = 1.25
	}
	r := receipt.Receipt{Verdict: receipt.Succeeded, Metrics: fmt.Appendf(nil, `{"step": 40, "loss": %v, "accuracy": 0.5}`, losses[name])}
	if name == k.failing {
		r = receipt.Receipt{Verdict: receipt.Failed, Reason: fail.RankFailed, Message: "rank 1 exited with 3"}
	}
	k.end(t, of, r)
}

// end writes the receipt, and then Tekton's end. Callers hold mu.
func (k *tekton) end(t *testing.T, of *v1.PipelineRun, r receipt.Receipt) {
	k.progress = slices.DeleteFunc(k.progress, func(name string) bool { return name == of.Name })
	maps.DeleteFunc(k.at, func(_, name string) bool { return name == of.Name })
	r.Run, r.Namespace, r.RunUID, r.Environment, r.Sweep = of.Name, "ns", string(of.UID), environmentOf(of), of.Labels["ml-dev-env/sweep"]
	r.Ended = time.Now()
	r.Started = r.Ended.Add(-time.Minute)
	r.Training = &receipt.Training{Args: launch.Values(of)["script-args"]}
	if err := receipt.Write(context.Background(), k.clients.Kube, r); err != nil {
		t.Error(err)
	}
	status := "False"
	if r.Verdict == receipt.Succeeded {
		status = "True"
	}
	object := k.server.Get(runsPath + of.Name)
	object["status"] = apitest.Object{"startTime": r.Started.UTC().Format(time.RFC3339), "completionTime": r.Ended.UTC().Format(time.RFC3339),
		"conditions": []any{apitest.Object{"type": "Succeeded", "status": status, "reason": "Tekton's"}}}
	k.server.Put(runsPath+of.Name, object)
}

// sweep runs mlenv run with these flags for a sweep named s of two learning rates and two seeds.
func (k *tekton) sweep(t *testing.T, change func(*runOptions)) (out, problems string, err error) {
	t.Helper()
	params := newParams(mldevenv.Bundle)
	params.pipeline.Namespace = "ns"
	o := &runOptions{params: params, runName: "s", values: map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}}}
	o.sweep.given, o.sweep.parallel = []string{"lr=1e-4,3e-4", "seed=1..2"}, 2
	change(o)
	if err := o.sweep.parse(); err != nil {
		t.Fatal(err)
	}
	var printed, written bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(&printed)
	cmd.SetErr(&written)
	err = o.startSweep(cmd, k.clients, params.pipeline, o.values)
	return printed.String(), written.String(), err
}

func codeOf(err error) int {
	if exit := (*command.Exit)(nil); errors.As(err, &exit) {
		return exit.Code
	} else if err != nil {
		return command.Failed
	}
	return command.Done
}

func (k *tekton) expect(t *testing.T, created ...string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	got := slices.Sorted(slices.Values(k.created))
	if diff := cmp.Diff(created, got); diff != "" {
		t.Errorf("runs that were created (-want +got):\n%s", diff)
	}
}

// A sweep runs each trial once, as many at a time as it may, and goes on after one that fails. The same command starts none again.
func TestSweep(t *testing.T) {
	k := newTekton(t)
	k.together, k.total, k.failing = 2, 4, "s-2"
	out, problems, err := k.sweep(t, func(*runOptions) {})
	if codeOf(err) != command.Failed || k.most != 2 {
		t.Fatalf("%v, %d runs at the same time; want exit code 1, and 2\n%s%s", err, k.most, out, problems)
	}
	for _, want := range []string{"Sweep s: 4 trials, 2 at the same time.", "== s-1 started: lr=1e-4 seed=1",
		"== s-2 failed after 1m0s: RankFailed",
		"== s-4 done after 1m0s", "Sweep s: 3 Succeeded, 1 Failed.", "s-2: RankFailed: rank 1 exited with 3\n  next: mlenv logs s-2 -n ns"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
	_, table, _ := strings.Cut(out, "NAME")
	var rows []string
	for line := range strings.Lines("NAME" + table) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	if diff := cmp.Diff([]string{"NAME lr seed STATE step loss accuracy DURATION REASON", "s-3 3e-4 1 Succeeded 40 1.25 0.5 1m0s -",
		"s-4 3e-4 2 Succeeded 40 1.25 0.5 1m0s -", "s-1 1e-4 1 Succeeded 40 2.5 0.5 1m0s -", "s-2 1e-4 2 Failed - - - 1m0s RankFailed"},
		rows[:5]); diff != "" {
		t.Errorf("the table, the lowest loss first (-want +got):\n%s", diff)
	}
	k.expect(t, "s-1", "s-2", "s-3", "s-4")
	made, err := k.clients.Tekton.TektonV1().PipelineRuns("ns").Get(t.Context(), "s-3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(made.Labels["ml-dev-env/sweep"], " ", made.Annotations["ml-dev-env/trial"],
		launch.Values(made)["script-args"]); got !=
		"s lr=3e-4 seed=1[--lr=3e-4 --seed=1]" {
		t.Errorf("the run has %s", got)
	}

	second, err := k.clients.Tekton.TektonV1().PipelineRuns("ns").Get(t.Context(), "s-2", metav1.GetOptions{})
	if err != nil || environmentOf(second) != "ml-dev-env-h-kim" {
		t.Errorf("%v; the second trial has environment %s: want the first one to start first", err, environmentOf(second))
	}

	// A deleted run counts while its receipt exists.
	k.server.Delete(runsPath + "s-1")
	out, problems, err = k.sweep(t, func(o *runOptions) {
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		o.sweep.addTo(flags)
		if err := flags.Parse([]string{"--sweep=lr=1e-4,3e-4", "--sweep=seed=1..2", "--parallel=2", "--output=json"}); err != nil {
			t.Error(err)
		}
	})
	if codeOf(err) != command.Failed || !strings.Contains(problems, "Sweep s continues: 4 of 4 trials have ended.") {
		t.Errorf("again: %v\n%s", err, problems)
	}
	k.expect(t, "s-1", "s-2", "s-3", "s-4")
	var read struct {
		APIVersion, Kind, Name, Namespace string
		Trials                            []struct {
			Name, State, Reason, Sweep, Message string
			Values                              map[string]string
			Metrics                             map[string]float64
		}
	}
	if err := json.Unmarshal([]byte(out), &read); err != nil {
		t.Fatal(err, out)
	}
	if first, second := read.Trials[0], read.Trials[1]; read.Kind != "Sweep" || read.APIVersion != command.OutputVersion || read.Name != "s" ||
		len(read.Trials) != 4 || first.Values["seed"] != "1" || first.Metrics["loss"] != 2.5 || first.Sweep != "s" ||
		second.State != "Failed" || second.Reason != "RankFailed" || second.Message == "" {
		t.Errorf("got %s", out)
	}
}

// SIGTERM cancels the trials in progress and starts no more. The same command starts those that have no run, and none again.
func TestSweepInterrupted(t *testing.T) {
	k := newTekton(t)
	several := make(chan struct{})
	k.several, k.wanted = several, 2
	go func() {
		<-several
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}()
	out, problems, err := k.sweep(t, func(*runOptions) {})
	if codeOf(err) != command.Interrupted || !strings.Contains(out, "Sweep s: 2 Cancelled, 2 NotStarted.\nThe same command continues") {
		t.Fatalf("got %v, want exit code 130\n%s%s", err, out, problems)
	}
	k.expect(t, "s-1", "s-2")
	k.mu.Lock()
	k.together, k.total = 2, 4
	k.mu.Unlock()
	out, problems, err = k.sweep(t, func(*runOptions) {})
	if codeOf(err) != command.Failed || !strings.Contains(out, "Sweep s continues: 2 of 4 trials have ended.") ||
		!strings.Contains(out, "Sweep s: 2 Succeeded, 2 Cancelled.") {
		t.Errorf("again: %v, want exit code 1\n%s%s", err, out, problems)
	}
	k.expect(t, "s-1", "s-2", "s-3", "s-4")
}

// --detach starts all and leaves. The same command without it follows them.
func TestSweepDetached(t *testing.T) {
	k := newTekton(t)
	out, problems, err := k.sweep(t, func(o *runOptions) { o.detach, o.sweep.parallel = true, 4 })
	if err != nil || !strings.Contains(out, "Sweep s: 4 Running.\nThe same command continues") {
		t.Fatalf("%v\n%s%s", err, out, problems)
	}
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		// With --parallel=1 all that are in progress are followed, too.
		out, problems, err = k.sweep(t, func(o *runOptions) { o.sweep.parallel = 1 })
	}()
	k.mu.Lock()
	for _, name := range slices.Clone(k.progress) {
		k.succeed(t, name)
	}
	k.mu.Unlock()
	<-followed
	if err != nil || !strings.Contains(out, "Sweep s: 4 Succeeded.") {
		t.Errorf("again: %v\n%s%s", err, out, problems)
	}
	k.expect(t, "s-1", "s-2", "s-3", "s-4")
}

// Runs of the same names that are no trials of this sweep are refused, all at once, before anything is started.
func TestSweepOfOthers(t *testing.T) {
	k := newTekton(t)
	if _, _, err := k.sweep(t, func(o *runOptions) { o.detach, o.sweep.parallel = true, 4 }); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.succeed(t, "s-4")
	k.mu.Unlock()
	k.server.Delete(runsPath + "s-4")
	for what, tc := range map[string]struct {
		change func(*runOptions)
		want   []string
	}{
		"other values": {func(o *runOptions) { o.sweep.given[1] = "seed=1,3" }, []string{"run s-2 exists with another param script-args",
			"run s-4 exists with another param script-args"}},
		"another param": {func(o *runOptions) { o.values["nodes"] = []string{"3"} }, []string{"run s-1 exists with another param nodes",
			"run s-3 exists with another param nodes"}},
	} {
		_, _, err := k.sweep(t, tc.change)
		for _, want := range tc.want {
			if codeOf(err) != command.WrongUsage || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: got %v, want %q", what, err, want)
			}
		}
		k.expect(t, "s-1", "s-2", "s-3", "s-4")
	}
	other := k.server.Get(runsPath + "s-3")
	delete(other["metadata"].(apitest.Object)["labels"].(apitest.Object), "ml-dev-env/sweep")
	k.server.Put(runsPath+"s-3", other)
	if _, _, err := k.sweep(t, func(*runOptions) {}); !strings.Contains(fmt.Sprint(err), "run s-3 exists with another sweep") ||
		!strings.Contains(fail.NextOf(err), "mlenv runs --sweep=s -n ns") {
		t.Errorf("a run that is no trial: got %v", err)
	}
}

// Trials in progress at the same time need an environment each; mistakes in params come with that one.
func TestSweepCrowded(t *testing.T) {
	k := newTekton(t)
	k.server.Delete("/api/v1/namespaces/ns/persistentvolumeclaims/" + env.Of(&kube.Clients{}, objects.DefaultName).Workspace)
	_, _, err := k.sweep(t, func(o *runOptions) {
		o.values["nodes"] = []string{"many"}
		o.sweep.given[0] = "lr=$(params.a[*])"
	})
	for _, want := range []string{"--parallel=2: the trials need an environment each", `param nodes: "many"`, "param script-args: value"} {
		if codeOf(err) != command.WrongUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	k.expect(t)
	k.together, k.total = 1, 4
	if out, problems, err := k.sweep(t, func(o *runOptions) { o.sweep.parallel = 1 }); err != nil || k.most != 1 {
		t.Errorf("one after another: %v\n%s%s", err, out, problems)
	}
}

// The same files may be committed between two calls; other files are another sweep.
func TestSweepOfAFolder(t *testing.T) {
	k := newTekton(t)
	t.Chdir(t.TempDir())
	write := func(text string) {
		if err := os.WriteFile("train.py", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	of := func(o *runOptions) { o.values["repo-url"] = []string{"."} }
	k.together, k.total = 2, 4
	// The stand-in has no nodes to send the folder to, so its runs end before.
	if out, problems, err := k.sweep(t, of); err != nil {
		t.Fatalf("%v\n%s%s", err, out, problems)
	}
	found := k.server.Get(runsPath + "s-1")
	params := found["spec"].(apitest.Object)["params"].([]any)
	found["spec"].(apitest.Object)["params"] = append(params, apitest.Object{"name": "revision", "value": "c0ffee-dirty"})
	k.server.Put(runsPath+"s-1", found)
	if out, problems, err := k.sweep(t, of); err != nil {
		t.Errorf("with another commit: %v\n%s%s", err, out, problems)
	}
	write("b")
	if _, _, err := k.sweep(t, of); codeOf(err) != command.WrongUsage ||
		!strings.Contains(fmt.Sprint(err), "run s-4 exists with another param repo-url") {
		t.Errorf("with another file: %v", err)
	}
}
