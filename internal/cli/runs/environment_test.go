// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"knative.dev/pkg/apis"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// Three runs at once, each of which sees a free environment when it chooses: at the end each has one of its own.
func TestRunsAtOnce(t *testing.T) {
	shared := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
		Name: env.Of(&kube.Clients{}, objects.DefaultName).Workspace},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}}}
	client := kubefake.NewClientset(shared)
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true,
			&authenticationv1.SelfSubjectReview{
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "kim"}}}, nil
	})
	tekton := tektonfake.NewSimpleClientset()
	var mu sync.Mutex
	made := 0
	tekton.PrependReactor("create", "pipelineruns", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		made++
		of := action.(clienttesting.CreateAction).GetObject().(*v1.PipelineRun).DeepCopy()
		of.Name = fmt.Sprintf("%s%d", of.GenerateName, made)
		of.UID = types.UID("uid of " + of.Name)
		return true, of, tekton.Tracker().Add(of)
	})
	clients := &kube.Clients{Kube: client, Tekton: tekton, Namespace: "ns"}
	pipeline := newParams(mldevenv.Bundle).pipeline
	pipeline.Namespace = "ns"
	const runs = 3
	var choices []*choice
	for range runs {
		values := map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"train.py"}, "gpus-per-node": {"1"}}
		choices = append(choices, chooseEnvironment(t.Context(), clients, pipeline, "", values, io.Discard))
	}
	var group sync.WaitGroup
	environments := make([]string, runs)
	for i, c := range choices {
		group.Go(func() {
			started, err := c.start(t.Context(), launch.Request{Pipeline: pipeline, Values: c.values})
			if err != nil {
				t.Error(err)
				return
			}
			environments[i] = launch.EnvironmentOf(started)
		})
	}
	group.Wait()
	slices.Sort(environments)
	left := unfinished(t.Context(), clients)
	if len(slices.Compact(slices.Clone(environments))) != runs || len(left) != runs {
		t.Errorf("environments %q of %d runs, want one for each of %d", environments, len(left), runs)
	}
	for _, action := range tekton.Actions() {
		d, deletes := action.(clienttesting.DeleteActionImpl)
		if how := d.DeleteOptions.PropagationPolicy; deletes && (how == nil || *how != metav1.DeletePropagationForeground) {
			t.Errorf("run %s was deleted without its TaskRuns, and the next run of that name finds them", d.Name)
		}
	}
	for _, run := range left {
		if name := launch.EnvironmentOf(&run); name != objects.DefaultName && run.Annotations[chosenAnnotation] == "" ||
			!objects.ValidName(name) {
			t.Errorf("run %s in environment %s has annotations %v, want the mark of a choice", run.Name, name, run.Annotations)
		}
	}
}

func TestChooseEnvironment(t *testing.T) {
	claim := func(mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
			Name: env.Of(&kube.Clients{}, objects.DefaultName).Workspace},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}
	}
	heldBy := func(user string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: objects.DefaultName},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &user}}
	}
	held := heldBy("colleague@example.com")
	other := func(name string, done bool) *v1.PipelineRun {
		r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1",
			Labels: map[string]string{"tekton.dev/pipeline": "train-multi-node"}}}
		if name != "" {
			r.Spec.Params = v1.Params{{Name: "name", Value: *v1.NewStructuredValues(name)}}
		}
		if done {
			r.Status.SetCondition(&apis.Condition{Type: apis.ConditionSucceeded, Status: corev1.ConditionTrue})
		}
		return r
	}
	shared, own := claim(corev1.ReadWriteMany), claim(corev1.ReadWriteOnce)
	own.Name += "-ml-dev-env-0"
	second, unseen := other("ml-dev-env-h-kim-2", false), other("", false)
	second.Name, unseen.Labels, unseen.Spec.PipelineRef = "train-2", nil, &v1.PipelineRef{Name: "train-multi-node"}
	local, err := os.ReadFile("../../../clusters/local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := func(mode string) *corev1.ConfigMap {
		text := strings.Replace(string(local), "mode: rwx", "mode: "+mode, 1)
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mlenv-cluster-local"},
			Data: map[string]string{"cluster.yaml": text}}
	}
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		runs    []runtime.Object
		runName string
		values  map[string][]string
		want    string // "" for the default
		note    string
	}{
		{"free", []runtime.Object{shared}, nil, "", nil, "", ""},
		{"held by a colleague", []runtime.Object{shared, held}, nil, "", nil, "ml-dev-env-h-kim", "held by colleague@example.com"},
		{"held by this user", []runtime.Object{shared, heldBy("H.Kim@example.com")}, nil, "", nil, "ml-dev-env-h-kim", "is held by you."},
		{"a run will take it", []runtime.Object{shared}, []runtime.Object{other("", false)}, "", nil, "ml-dev-env-h-kim",
			"held by pipelinerun train-1"},
		{"a run took another one", []runtime.Object{shared}, []runtime.Object{other("h-kim", false)}, "", nil, "", ""},
		{"a run has ended", []runtime.Object{shared}, []runtime.Object{other("", true)}, "", nil, "", ""},
		{"named", []runtime.Object{shared, held}, nil, "", map[string][]string{"name": {"ml-dev-env"}}, "ml-dev-env", ""},
		{"waits", []runtime.Object{shared, held}, nil, "", map[string][]string{"on-busy": {"wait"}}, "", ""},
		{"no claim", []runtime.Object{held}, nil, "", nil, "", ""},
		{"no claim, and claims that will be shared", []runtime.Object{held, file("rwx")}, nil, "", nil, "ml-dev-env-h-kim", "held by colleague"},
		{"no claim, and claims for each node", []runtime.Object{held, file("volumeClaimTemplates")}, nil, "", nil, "", ""},
		{"two of mine are taken", []runtime.Object{shared, held}, []runtime.Object{other("ml-dev-env-h-kim", false), second}, "", nil,
			"ml-dev-env-h-kim-3", "held by colleague"},
		{"a run that Tekton has not seen", []runtime.Object{shared}, []runtime.Object{unseen}, "", nil, "ml-dev-env-h-kim",
			"held by pipelinerun train-1"},
		{"a claim of one node", []runtime.Object{claim(corev1.ReadWriteOnce), held}, nil, "", nil, "", ""},
		{"nodes have claims", []runtime.Object{shared, held, own}, nil, "", nil, "", ""},
		{"claims of each node", []runtime.Object{shared, held}, nil, "", map[string][]string{"storage": {"volumeClaimTemplates"}}, "", ""},
		{"a run of that name has chosen", []runtime.Object{shared, held}, []runtime.Object{other("ml-dev-env-lee", false)}, "train-1", nil,
			"ml-dev-env-lee", ""},
		{"a run of that name has the default", []runtime.Object{shared, held}, []runtime.Object{other("", false)}, "train-1", nil, "", ""},
		{"a new name of a run", []runtime.Object{shared, held}, nil, "train-2", nil, "ml-dev-env-h-kim", "held by colleague"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := kubefake.NewClientset(test.objects...)
			client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true,
					&authenticationv1.SelfSubjectReview{
						Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "H.Kim@example.com"}}}, nil
			})
			clients := &kube.Clients{Kube: client, Tekton: tektonfake.NewSimpleClientset(test.runs...), Namespace: "ns"}
			values := map[string][]string{}
			for name, value := range test.values {
				values[name] = value
			}
			var notes strings.Builder
			chooseEnvironment(t.Context(), clients, newParams(mldevenv.Bundle).pipeline, test.runName, values, &notes)
			if got := strings.Join(values["name"], " "); got != test.want {
				t.Errorf("environment %q, want %q", got, test.want)
			}
			if !strings.Contains(notes.String(), test.note) || (notes.Len() > 0) != (test.note != "") {
				t.Errorf("printed %q, want %q", notes.String(), test.note)
			}
		})
	}
}

func TestShortName(t *testing.T) {
	for user, want := range map[string]string{
		"H.Kim@example.com": "h-kim", "system:serviceaccount:ns:ci": "ci", "kube:admin": "admin", "@": "user", "ö": "user",
		strings.Repeat("ab.", 20): "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab",
	} {
		got := shortName(user)
		if got != want || !objects.ValidName("ml-dev-env-"+got) {
			t.Errorf("%s: got %q, want %q", user, got, want)
		}
	}
}
