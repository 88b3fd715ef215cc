// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestPodComesAfterItsPullSecrets: OpenShift gives each account its pull secrets at a time of its own, and a pod copies those that
// its account has when it is created. The fake gives none: from the third request on, the account has one.
func TestPodComesAfterItsPullSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newest := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default", CreationTimestamp: metav1.Now()}}
		client := fake.NewClientset(newest, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}})
		client.Resources = []*metav1.APIResourceList{{GroupVersion: "image.openshift.io/v1"}}
		asked := 0
		client.PrependReactor("get", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
			if asked++; asked < 3 {
				return false, nil, nil
			}
			has := newest.DeepCopy()
			has.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "default-dockercfg-1"}}
			return true, has, nil
		})
		enough := errors.New("the test ends here")
		client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if name := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).Spec.ServiceAccountName; name != "default" || asked < 3 {
				t.Errorf("the pod of account %s came before its pull secrets", name)
			}
			return true, nil, enough
		})
		var notes strings.Builder
		claim := Claim{Name: "data", For: "run", StepsImage: "image", Notes: &notes}
		if _, err := startPod(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, claim); !errors.Is(err, enough) {
			t.Errorf("got %v", err)
		}
		if got, want := notes.String(), "Waiting until service account default has its pull secrets.\n"; got != want {
			t.Errorf("it said %q, want %q", got, want)
		}
	})
}

// The next call deletes the pods that earlier calls of mlenv fetch left, and no pod that runs or is another program's.
func TestEndedPodsAreRemoved(t *testing.T) {
	pod := func(name, by string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name),
			Labels: map[string]string{componentLabel: by}}, Status: corev1.PodStatus{Phase: phase}}
	}
	client := fake.NewClientset(pod("ended", component, corev1.PodSucceeded), pod("runs", component, corev1.PodRunning),
		pod("other", "agent", corev1.PodFailed))
	all, err := client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err == nil {
		err = removeEnded(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, all.Items)
	}
	var deleted []string
	for _, action := range client.Actions() {
		if action, ok := action.(clienttesting.DeleteActionImpl); ok {
			deleted = append(deleted, action.Name+", "+string(*action.DeleteOptions.Preconditions.UID))
		}
	}
	if want := []string{"ended, uid of ended"}; err != nil || !slices.Equal(deleted, want) {
		t.Errorf("deleted %q, %v, want %q", deleted, err, want)
	}
}

// The steps pull their image with Secrets that are linked to their account, and the pod has another account.
func TestPodPullsAsTheSteps(t *testing.T) {
	account := func(name string, secrets ...string) *corev1.ServiceAccount {
		a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		for _, secret := range secrets {
			a.ImagePullSecrets = append(a.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
		}
		return a
	}
	client := fake.NewClientset(account("default", "default-dockercfg-1"), account("mlenv-pipeline", "mlenv-pipeline-dockercfg-2", "quay"),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}})
	enough := errors.New("the test ends here")
	var got []corev1.LocalObjectReference
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		got = action.(clienttesting.CreateAction).GetObject().(*corev1.Pod).Spec.ImagePullSecrets
		return true, nil, enough
	})
	claim := Claim{Name: "data", For: "run", StepsImage: "image", Notes: t.Output()}
	if _, err := startPod(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, claim); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	if want := []corev1.LocalObjectReference{{Name: "quay"}, {Name: "default-dockercfg-1"}}; !slices.Equal(got, want) {
		t.Errorf("the pod's pull secrets are %v, want %v", got, want)
	}
}
