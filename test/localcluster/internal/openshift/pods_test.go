// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/openshift/scc"
)

// team returns the server of a cluster with one namespace of users. rights define who may use which constraints there,
// as USER-OR-GROUP/NAME. The tests rely on the fake clientset to store the namespace, and to pass every review to the
// reactor.
func team(t *testing.T, rights ...string) *server {
	t.Helper()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Annotations: namespaceAnnotations(firstUID)}})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		a := review.Spec.ResourceAttributes
		if a.Verb != "use" || a.Group != "security.openshift.io" || a.Resource != "securitycontextconstraints" || a.Namespace != "team" {
			t.Errorf("the review asked for %+v", a)
		}
		review.Status.Allowed = slices.ContainsFunc(append(review.Spec.Groups, review.Spec.User), func(who string) bool {
			return slices.Contains(rights, who+"/"+a.Name)
		})
		return true, review, nil
	})
	constraints := cache.NewSharedInformer(nil, &securityv1.SecurityContextConstraints{}, 0)
	stock, err := scc.Stock()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range stock {
		if err := constraints.GetStore().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	namespaces := informers.NewSharedInformerFactory(client, 0).Core().V1().Namespaces().Lister()
	return &server{clients: Clients{Kube: client}, namespaces: namespaces, constraints: constraints, next: firstUID}
}

// everybodys is the right that every account has on OpenShift.
const everybodys = "system:authenticated/restricted-v2"

func request(t *testing.T, creator authenticationv1.UserInfo, operation admissionv1.Operation, pod,
	old *corev1.Pod) *admissionv1.AdmissionRequest {
	t.Helper()
	raw := func(p *corev1.Pod) runtime.RawExtension {
		content, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: content}
	}
	r := &admissionv1.AdmissionRequest{Namespace: "team", Operation: operation, UserInfo: creator, Object: raw(pod)}
	if old != nil {
		r.OldObject = raw(old)
	}
	return r
}

func podWith(account string, annotations map[string]string, add ...corev1.Capability) *corev1.Pod {
	c := corev1.Container{Name: "c"}
	if len(add) > 0 {
		c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: add}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: annotations},
		Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{c}, SecurityContext: &corev1.PodSecurityContext{}},
	}
}

var (
	controller = authenticationv1.UserInfo{Username: "system:serviceaccount:kube-system:statefulset-controller",
		Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	master = authenticationv1.UserInfo{Username: "root", Groups: []string{"system:masters", "system:authenticated"}}
	alice  = authenticationv1.UserInfo{Username: "alice", Groups: []string{"system:authenticated"}}
)

func TestAdmitPod(t *testing.T) {
	const account = "system:serviceaccount:team:trainer"
	tests := []struct {
		name         string
		rights       []string
		creator      authenticationv1.UserInfo
		pod          *corev1.Pod
		want, byWhom string
		refusal      string
	}{
		{"what everybody may", []string{everybodys}, controller, podWith("trainer", nil), "restricted-v2", "serviceaccount", ""},
		{"its service account may", []string{everybodys, account + "/nccl-scc"}, controller, podWith("trainer", nil, "IPC_LOCK"), "nccl-scc",
			"serviceaccount", ""},
		{"another account may", []string{everybodys, account + "/nccl-scc"}, controller, podWith("default", nil, "IPC_LOCK"), "", "",
			`"IPC_LOCK": capability may not be added`},
		{"all accounts of the namespace may", []string{"system:serviceaccounts:team/nccl-scc"}, controller, podWith("default", nil, "IPC_LOCK"),
			"nccl-scc", "serviceaccount", ""},
		{"its creator may", []string{everybodys, "alice/nccl-scc"}, alice, podWith("default", nil, "IPC_LOCK"), "nccl-scc", "user", ""},
		{"the constraints name a group of its creator", nil, master, podWith("", nil), "privileged", "user", ""},
		{"nobody may anything", nil, alice, podWith("default", nil), "", "",
			`provider "restricted-v2": Forbidden: not usable by user or serviceaccount`},
		{"pinned", []string{everybodys, account + "/privileged"}, controller,
			podWith("trainer", map[string]string{securityv1.RequiredSCCAnnotation: "privileged"}), "privileged", "serviceaccount", ""},
	}
	for _, test := range tests {
		s := team(t, test.rights...)
		patch, err := s.admitPod(t.Context(), request(t, test.creator, admissionv1.Create, test.pod, nil))
		if test.refusal != "" {
			if err == nil ||
				!strings.HasPrefix(err.Error(), `pods "p-" is forbidden: unable to validate against any security context constraint: [`) ||
				!strings.Contains(err.Error(), test.refusal) {
				t.Errorf("%s: %v, want %s", test.name, err, test.refusal)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var operations []struct {
			Path  string
			Value map[string]any
		}
		if err := json.Unmarshal(patch, &operations); err != nil {
			t.Fatal(err)
		}
		stamps := operations[0].Value
		if operations[0].Path != "/metadata/annotations" || stamps[securityv1.ValidatedSCCAnnotation] != test.want ||
			stamps[securityv1.ValidatedSCCSubjectTypeAnnotation] != test.byWhom {
			t.Errorf("%s: stamped %v, want %s by %s", test.name, stamps, test.want, test.byWhom)
		}
	}
}

func TestPodsWithoutIndex(t *testing.T) {
	for _, value := range []string{"", "true"} {
		s := team(t, everybodys)
		namespace, err := s.clients.Kube.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		namespace.Annotations[noPodIndex] = value
		if _, err := s.clients.Kube.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := podWith("default", nil)
		pod.Labels = map[string]string{"app": "a", appsv1.PodIndexLabel: "1"}
		patch, err := s.admitPod(t.Context(), request(t, controller, admissionv1.Create, pod, nil))
		if got := strings.Contains(string(patch), `"path":"/metadata/labels","value":{"app":"a"}`); err != nil || got != (value == "true") {
			t.Errorf("annotation %q: %s, %v", value, patch, err)
		}
	}
}

// admitted returns the pod after admitPod has admitted it with restricted-v2.
func admitted(t *testing.T, s *server) *corev1.Pod {
	t.Helper()
	pod := podWith("default", nil)
	answer, err := s.choose(t.Context(), request(t, controller, admissionv1.Create, pod, nil), pod, false)
	if err != nil {
		t.Fatal(err)
	}
	answer.Pod.Annotations = map[string]string{securityv1.ValidatedSCCAnnotation: answer.Name}
	return answer.Pod
}

func TestCheckPod(t *testing.T) {
	s := team(t, everybodys)
	tests := []struct {
		name      string
		operation admissionv1.Operation
		change    func(pod *corev1.Pod)
		want      string
	}{
		{"as admitted", admissionv1.Create, func(*corev1.Pod) {}, ""},
		{"given a capability since", admissionv1.Create, func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
		}, `"SYS_ADMIN": capability may not be added`},
		{"robbed of its user", admissionv1.Create, func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.RunAsUser = nil },
			"unable to validate"},
		{"stamped otherwise than pinned", admissionv1.Create, func(p *corev1.Pod) { p.Annotations[securityv1.RequiredSCCAnnotation] = "anyuid" },
			"required scc/anyuid does not match the suggested scc/restricted-v2"},
		{"pinned later", admissionv1.Update, func(p *corev1.Pod) { p.Annotations[securityv1.RequiredSCCAnnotation] = "restricted-v2" },
			"invalid change of required security context constraint annotation: openshift.io/required-scc"},
		{"labelled later", admissionv1.Update, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, ""},
		{"another image", admissionv1.Update, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, ""},
	}
	for _, test := range tests {
		pod := admitted(t, s)
		old := pod.DeepCopy()
		test.change(pod)
		patch, err := s.checkPod(t.Context(), request(t, controller, test.operation, pod, old))
		if patch != nil || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestTheClustersOwnPodsAreLeftAlone(t *testing.T) {
	s := team(t)
	for _, namespace := range []string{"kube-system", "default", "tekton-pipelines", "openshift-multus"} {
		r := request(t, controller, admissionv1.Create, podWith("default", nil, "SYS_ADMIN"), nil)
		r.Namespace = namespace
		for _, admit := range []func() ([]byte, error){
			func() ([]byte, error) { return s.admitPod(t.Context(), r) },
			func() ([]byte, error) { return s.checkPod(t.Context(), r) },
		} {
			if patch, err := admit(); patch != nil || err != nil {
				t.Errorf("%s: %s, %v", namespace, patch, err)
			}
		}
	}
}
