package openshift

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func ptr[T any](v T) *T { return &v }

func TestSCCFor(t *testing.T) {
	container := func(sc *corev1.SecurityContext) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: sc}}}
	}
	tests := []struct {
		name string
		spec corev1.PodSpec
		want string
	}{
		{"nothing said", container(nil), "restricted-v2"},
		{"container's user", container(&corev1.SecurityContext{RunAsUser: ptr[int64](0)}), "anyuid"},
		{"pod's user", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr[int64](7)}}, "anyuid"},
		{"init container's user", corev1.PodSpec{InitContainers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{RunAsUser: ptr[int64](7)}}}}, "anyuid"},
		{"privileged", container(&corev1.SecurityContext{Privileged: ptr(true)}), "privileged"},
		{"not privileged", container(&corev1.SecurityContext{Privileged: ptr(false)}), "restricted-v2"},
		{"host network", corev1.PodSpec{HostNetwork: true}, "privileged"},
		{"host path", corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}}}, "privileged"},
	}
	for _, test := range tests {
		if got := sccFor(&corev1.Pod{Spec: test.spec}); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestRestrict(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}},
		Containers:     []corev1.Container{{Name: "c", SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr(true)}}},
	}}
	if err := restrict(pod, namespaceAnnotations(firstUID+blockSize)); err != nil {
		t.Fatal(err)
	}
	if got := *pod.Spec.SecurityContext.FSGroup; got != 1000660000 {
		t.Errorf("fsGroup %d, want 1000660000", got)
	}
	for _, c := range []corev1.Container{pod.Spec.InitContainers[0], pod.Spec.Containers[0]} {
		sc := c.SecurityContext
		if *sc.RunAsUser != 1000660000 || !*sc.RunAsNonRoot || *sc.AllowPrivilegeEscalation || sc.RunAsGroup != nil {
			t.Errorf("container %s: %+v", c.Name, sc)
		}
		if len(sc.Capabilities.Drop) != 1 || sc.Capabilities.Drop[0] != "ALL" {
			t.Errorf("container %s drops %v", c.Name, sc.Capabilities.Drop)
		}
	}
	if !*pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
		t.Error("what the pod said itself was lost")
	}
}

func TestRestrictRefusesEverythingAtOnce(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"IPC_LOCK", "NET_BIND_SERVICE"}}}},
		{SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr(true)}},
	}}}
	err := restrict(pod, namespaceAnnotations(firstUID))
	if err == nil {
		t.Fatal("admitted")
	}
	for _, want := range []string{"unable to validate against any security context constraint", `"IPC_LOCK": capability may not be added`, ".containers[1].allowPrivilegeEscalation"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %q", want, err)
		}
	}
	if strings.Contains(err.Error(), "NET_BIND_SERVICE") {
		t.Errorf("restricted-v2 allows NET_BIND_SERVICE: %v", err)
	}
	if err := restrict(&corev1.Pod{}, nil); err == nil || !strings.Contains(err.Error(), uidRangeAnnotation) {
		t.Errorf("a namespace without a range: %v", err)
	}
}

// The fake clientset stores what it is given; nothing more is relied on.
func TestNamespacesGetBlocksOfTheirOwn(t *testing.T) {
	taken := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "taken", Annotations: namespaceAnnotations(firstUID + 4*blockSize)}}
	s := &server{client: fake.NewClientset(taken), next: firstUID}
	seen := map[string]bool{taken.Annotations[uidRangeAnnotation]: true}
	for _, name := range []string{"a", "b", "c"} {
		raw, err := json.Marshal(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kept": "yes"}}})
		if err != nil {
			t.Fatal(err)
		}
		request := &admissionv1.AdmissionRequest{Name: name}
		request.Object.Raw = raw
		patch, err := s.admitNamespace(request)
		if err != nil {
			t.Fatal(err)
		}
		var operations []struct {
			Path  string
			Value map[string]string
		}
		if err := json.Unmarshal(patch, &operations); err != nil {
			t.Fatal(err)
		}
		annotations := operations[0].Value
		if r := annotations[uidRangeAnnotation]; r == "" || seen[r] {
			t.Errorf("%s was given the range %q; taken: %v", name, r, seen)
		}
		seen[annotations[uidRangeAnnotation]] = true
		if annotations["kept"] != "yes" {
			t.Errorf("%s lost its own annotation: %v", name, annotations)
		}
	}
	request := &admissionv1.AdmissionRequest{Name: "openshift-monitoring"}
	if patch, err := s.admitNamespace(request); patch != nil || err != nil {
		t.Errorf("the cluster's own namespace was changed: %s, %v", patch, err)
	}
}
