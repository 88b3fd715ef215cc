package provision

import (
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
)

func accountWith(name string, secrets ...string) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{}}}
	for _, secret := range secrets {
		account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
		account.Annotations["openshift.io/internal-registry-pull-secret-ref"] = secret
	}
	return account
}

// TestPodsComeAfterTheirPullSecrets: OpenShift gives a new account its secrets a moment later, and admission copies them only
// into pods that name none.
func TestPodsComeAfterTheirPullSecrets(t *testing.T) {
	for _, test := range []struct {
		name, own string
		steps     *corev1.ServiceAccount
		want      []corev1.LocalObjectReference
	}{
		{"the account's alone", "", accountWith("steps", "steps-dockercfg-1"), nil},
		{"the cluster file's too", "mine", accountWith("steps"), []corev1.LocalObjectReference{{Name: "mine"}, {Name: "ml-dev-sa-dockercfg-1"}}},
		{"the steps image's too", "", accountWith("steps", "linked", "steps-dockercfg-1"), []corev1.LocalObjectReference{{Name: "linked"}, {Name: "ml-dev-sa-dockercfg-1"}}},
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
				// The first request decides whether to create it, the second whether to wait.
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

// TestPullSecretsOfARunningEnvironment: a Secret that the account got later is no reason for new pods.
func TestPullSecretsOfARunningEnvironment(t *testing.T) {
	p := newPlace(t, accountWith("ml-dev-sa", "ml-dev-sa-dockercfg-1", "later"))
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

func TestPodsWithoutPullSecretsAreReplaced(t *testing.T) {
	pod := func(name string, secrets ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.ImagePullSecrets = accountWith("", secrets...).ImagePullSecrets
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
		return p
	}
	early, good := pod("env-0"), pod("env-1", "ml-dev-sa-dockercfg-1")
	p := newPlace(t, early, good)
	err := p.provisioner().replaceWithoutPullSecrets(t.Context(), diagnose.Snapshot{Pods: []corev1.Pod{*early, *good}, Account: accountWith("ml-dev-sa", "ml-dev-sa-dockercfg-1")})
	if diff := cmp.Diff([]string{"pod env-1"}, p.left()); diff != "" || err != nil {
		t.Errorf("pods that are left (-want +got):\n%s%v", diff, err)
	}
}
