// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestPodThatCameTooEarly: if the account has no pull secrets yet, its pods never get them. That holds for pods that name
// other Secrets, and for pods that name Secrets that OpenShift has replaced.
func TestPodThatCameTooEarly(t *testing.T) {
	s := withPods(4, on, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "train", Image: image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "ErrImagePull", Message: "initializing source docker://" + image + ": reading manifest 1: unauthorized: authentication " +
					"required",
			}}}}
	})
	s.Pods[1].Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "ml-dev-sa-dockercfg-1"}}
	s.Pods[2].Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
	s.Pods[3].Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}, {Name: "ml-dev-sa-dockercfg-0"}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-sa", Namespace: space}}
	client := fake.NewClientset(s.StatefulSet, &s.Pods[0], &s.Pods[1], &s.Pods[2], &s.Pods[3], account,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: space},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "default-dockercfg-1"}}})
	read, err := Collect(t.Context(), client, space, env)
	if err != nil {
		t.Fatal(err)
	}
	if got := WithoutPullSecrets(read); len(got) > 0 {
		t.Errorf("the account has no pull secrets: %v", got)
	}
	if found := Explain(read, now); len(found) == 0 || found[0].Final ||
		!strings.Contains(found[0].Seen, "cannot be pulled yet, because service account ml-dev-sa has not got its pull secrets") {
		t.Errorf("while the account waits for its pull secrets: %+v", found)
	}
	account.ImagePullSecrets = s.Pods[1].Spec.ImagePullSecrets
	if _, err := client.CoreV1().ServiceAccounts(space).Update(t.Context(), account, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if read, err = Collect(t.Context(), client, space, env); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range WithoutPullSecrets(read) {
		names = append(names, pod.Name)
	}
	if want := []string{env + "-0", env + "-2", env + "-3"}; !slices.Equal(names, want) {
		t.Errorf("pods %v lack pull secrets, want %v", names, want)
	}
	for _, f := range Explain(read, now) {
		early := strings.Contains(f.Seen, "the pod was created before service account ml-dev-sa got its pull secrets")
		if early != (f.Object == "pods "+env+"-0, "+env+"-2 and "+env+"-3") ||
			early && (f.Final || !strings.Contains(f.Next, "oc delete pod "+env+"-0 -n "+space)) {
			t.Errorf("%+v", f)
		}
	}
}
