// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func accountWith(name string, secrets ...string) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{}}}
	for _, secret := range secrets {
		account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
		account.Annotations["openshift.io/internal-registry-pull-secret-ref"] = secret
	}
	return account
}

// TestPodsComeAfterTheirPullSecrets: OpenShift creates the secrets of a new account a moment later, and admission copies
// them only into pods that name none.
func TestPodsComeAfterTheirPullSecrets(t *testing.T) {
	for _, test := range []struct {
		name, own string
		steps     *corev1.ServiceAccount
		want      []corev1.LocalObjectReference
	}{
		{"the account's alone", "", accountWith("steps", "steps-dockercfg-1"), nil},
		{"the cluster file's too", "mine", accountWith("steps"), []corev1.LocalObjectReference{{Name: "mine"}, {Name: "ml-dev-sa-dockercfg-1"}}},
		{"the steps image's too", "", accountWith("steps", "linked", "steps-dockercfg-1"),
			[]corev1.LocalObjectReference{{Name: "linked"}, {Name: "ml-dev-sa-dockercfg-1"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t, accountWith("default", "default-dockercfg-1"), accountWith("ml-dev-sa"), test.steps).withRun(day())
			p.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				review := &authenticationv1.SelfSubjectReview{}
				review.Status.UserInfo.Username = "system:serviceaccount:ns:steps"
				return true, review, nil
			})
			asked, given := 0, false
			p.kube.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if action.(clienttesting.GetAction).GetName() != "ml-dev-sa" {
					return false, nil, nil
				}
				// By the first request the step decides whether to create the account, by the second whether to wait.
				if asked++; asked <= 2 {
					return false, nil, nil
				}
				given = true
				return true, accountWith("ml-dev-sa", "ml-dev-sa-dockercfg-1"), nil
			})
			early := false
			p.kube.PrependReactor("patch", "statefulsets", func(clienttesting.Action) (bool, runtime.Object, error) {
				early = early || !given
				return false, nil, nil
			})
			step := p.provisioner(func(s *provisioner) { s.request.Cluster.Image.PullSecret = test.own })
			for time := range 2 {
				if _, err := step.run(t.Context()); err != nil {
					t.Fatalf("time %d: %v\n%s", time+1, err, p.messages())
				}
			}
			if early || !strings.Contains(p.messages(), "Waiting until service account ml-dev-sa has its pull secrets.") {
				t.Errorf("pods were created before their account had pull secrets: %v\n%s", early, p.messages())
			}
			set, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, set.Spec.Template.Spec.ImagePullSecrets); diff != "" {
				t.Errorf("pull secrets of the pods (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStepsSecrets: the nodes pull the steps image with the Secrets of the account under which the steps run or would run.
func TestStepsSecrets(t *testing.T) {
	p := newPlace(t, accountWith("mlenv-pipeline", "linked", "mlenv-pipeline-dockercfg-1"),
		accountWith("other", "others", "other-dockercfg-1"))
	p.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		review := &authenticationv1.SelfSubjectReview{}
		review.Status.UserInfo.Username = "system:serviceaccount:ns:other"
		return true, review, nil
	})
	for inCluster, want := range map[bool]string{true: "others", false: "linked"} {
		step := p.provisioner(func(s *provisioner) { s.clients.InCluster = inCluster })
		if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: want}}, step.stepsSecrets(t.Context())); diff != "" {
			t.Errorf("in the cluster %v (-want +got):\n%s", inCluster, diff)
		}
	}
}

// TestPullSecretsOfARunningEnvironment: a Secret that users linked to the account later is no reason to replace pods. One
// of OpenShift's Secrets may have replaced another one, which does not exist any more.
func TestPullSecretsOfARunningEnvironment(t *testing.T) {
	account := accountWith("ml-dev-sa", "ml-dev-sa-dockercfg-1")
	account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: "later"})
	p := newPlace(t, account)
	with := func(names ...string) *appsv1.StatefulSet {
		set := &appsv1.StatefulSet{}
		set.Spec.Template.Spec.ServiceAccountName = "ml-dev-sa"
		set.Spec.Template.Spec.ImagePullSecrets = accountWith("", names...).ImagePullSecrets
		return set
	}
	for _, test := range []struct {
		name             string
		live, want, then *appsv1.StatefulSet
	}{
		{"the same", with("mine", "ml-dev-sa-dockercfg-1"), with("mine"), with("mine", "ml-dev-sa-dockercfg-1")},
		{"the account's was replaced", with("mine", "ml-dev-sa-dockercfg-0"), with("mine"), with("mine", "ml-dev-sa-dockercfg-1")},
		{"the account's came too late", with("mine"), with("mine"), with("mine", "ml-dev-sa-dockercfg-1")},
		{"none is named", with(), with(), with()},
		{"another of the cluster file", with("old", "ml-dev-sa-dockercfg-1"), with("mine"), with("mine", "ml-dev-sa-dockercfg-1", "later")},
	} {
		if err := p.provisioner().addPullSecrets(t.Context(), test.live, test.want); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(test.then.Spec.Template.Spec.ImagePullSecrets, test.want.Spec.Template.Spec.ImagePullSecrets); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestPodsWithoutPullSecretsAreReplaced: provision adds the account's current pull secrets to a StatefulSet that names
// pull secrets before it replaces the pods. Otherwise the next pods would lack them too.
func TestPodsWithoutPullSecretsAreReplaced(t *testing.T) {
	refs := func(names ...string) []corev1.LocalObjectReference { return accountWith("", names...).ImagePullSecrets }
	pod := func(name string, secrets ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.ImagePullSecrets = refs(secrets...)
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
		return p
	}
	account := accountWith("ml-dev-sa", "ml-dev-sa-dockercfg-1")
	for _, test := range []struct {
		name         string
		early        *corev1.Pod
		pinned, then []corev1.LocalObjectReference
	}{
		{"none is named", pod("env-0"), nil, nil},
		{"the cluster file's alone", pod("env-0", "mine"), refs("mine"), refs("mine", "ml-dev-sa-dockercfg-1")},
		{"a replaced one", pod("env-0", "mine", "ml-dev-sa-dockercfg-0"), refs("mine", "ml-dev-sa-dockercfg-0"),
			refs("mine", "ml-dev-sa-dockercfg-1")},
	} {
		t.Run(test.name, func(t *testing.T) {
			good := pod("env-1", "ml-dev-sa-dockercfg-1")
			set := &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}}
			set.Spec.Replicas = new(int32) // otherwise the fake creates the pods again
			set.Spec.Template.Spec.ServiceAccountName = account.Name
			set.Spec.Template.Spec.ImagePullSecrets = test.pinned
			p := newPlace(t, test.early, good, account)
			if err := kube.Apply(t.Context(), p.kube, set); err != nil {
				t.Fatal(err)
			}
			err := p.provisioner().replaceWithoutPullSecrets(t.Context(), diagnose.Snapshot{Pods: []corev1.Pod{*test.early, *good},
				Account: account}, set)
			if pods := slices.DeleteFunc(p.left(), func(left string) bool { return !strings.HasPrefix(left, "pod ") }); err != nil ||
				!slices.Equal(pods, []string{"pod env-1"}) {
				t.Errorf("pods %v are left, %v", pods, err)
			}
			live, err := p.kube.AppsV1().StatefulSets("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.then, live.Spec.Template.Spec.ImagePullSecrets); diff != "" {
				t.Errorf("pull secrets of the StatefulSet (-want +got):\n%s", diff)
			}
		})
	}
}
