// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// TestStepPodWithoutImage has messages of containerd and of CRI-O. The fake ignores the field selector of the events.
func TestStepPodWithoutImage(t *testing.T) {
	const image = "registry.example.com/team/steps@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	const containerd = `failed to pull and unpack image "` + image + `": failed to resolve reference "` + image +
		`": unexpected status from HEAD request to https://registry.example.com/v2/: 401 Unauthorized`
	const crio = "initializing source docker://" + image + ": reading manifest in registry.example.com/team/steps: unauthorized: " +
		"authentication required"
	pod := func(reason, message string, secrets ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "run-preflight-pod", UID: "pod-1"}}
		p.Spec.ServiceAccountName = "mlenv-pipeline"
		p.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "tekton.example.com/entrypoint:1"}}
		p.Spec.Containers = []corev1.Container{{Name: "step-preflight", Image: image}}
		for _, s := range secrets {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{
			{Name: "prepare", Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "step-preflight", Image: image,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		return p
	}
	account := func(secrets ...string) *corev1.ServiceAccount {
		a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "mlenv-pipeline"}}
		for _, s := range secrets {
			a.ImagePullSecrets = append(a.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
		return a
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: space, Name: "e1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "run-preflight-pod", UID: "pod-1"},
		Reason:         "Failed", Message: `Failed to pull image "` + image + `": ` + containerd,
	}
	const own = "mlenv-pipeline-dockercfg-x"
	const again = "mlenv run --like run -n " + space
	for _, test := range []struct {
		name    string
		pod     *corev1.Pod
		account *corev1.ServiceAccount
		early   bool
		seen    []string
		next    string
	}{
		{"before its account's secrets", pod("ErrImagePull", containerd), account(own), true,
			[]string{"image " + image, "before service account mlenv-pipeline got its pull secrets (" + own + ")", "401 Unauthorized"}, again},
		{"the same by CRI-O, which backs off", pod("ImagePullBackOff", `Back-off pulling image "`+image+`": ErrImagePull: `+crio), account(own),
			true,
			[]string{"before service account mlenv-pipeline got its pull secrets (" + own + ")", "authentication required"}, again},
		{"the secrets have not come yet", pod("ErrImagePull", crio), account(), true,
			[]string{"cannot be pulled yet, because service account mlenv-pipeline has not got its pull secrets"}, again},
		{"with the secrets", pod("ErrImagePull", containerd, own), account(own), false, []string{"may not be pulled without other credentials"},
			"oc create secret"},
		{"another cause", pod("ErrImagePull", image+": not found"), account(own), false, []string{"does not exist"}, "oc image info"},
		{"Tekton has deleted the pod", nil, account(own), true,
			[]string{"image " + image, "before service account mlenv-pipeline got its pull secrets (" + own + ")", "401 Unauthorized"}, again},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := fake.NewClientset(test.account, event,
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "default"},
					ImagePullSecrets: []corev1.LocalObjectReference{{Name: "default-dockercfg-1"}}})
			if test.pod != nil {
				if err := client.Tracker().Add(test.pod); err != nil {
					t.Fatal(err)
				}
			}
			step := StepPod{Namespace: space, Name: "run-preflight-pod", Run: "run", Image: image, Account: "mlenv-pipeline"}
			f, early, err := step.WithoutImage(t.Context(), client, now)
			if err != nil || early != test.early || f.Reason != fail.ImageUnavailable || !strings.Contains(f.Next, test.next) {
				t.Errorf("got early %v, %+v, %v; want early %v, next %q", early, f, err, test.early, test.next)
			}
			for _, seen := range test.seen {
				if !strings.Contains(f.Seen, seen) {
					t.Errorf("%q is missing in %q", seen, f.Seen)
				}
			}
			if strings.Contains(f.Message(), `""`) {
				t.Errorf("an empty name is in %q", f.Message())
			}
		})
	}
	running := pod("", "")
	running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	f, early, err := StepPod{Namespace: space, Name: running.Name}.WithoutImage(t.Context(), fake.NewClientset(running), now)
	if err != nil || early || f.Reason != "" {
		t.Errorf("a pod that runs: %+v, %v, %v", f, early, err)
	}
}
