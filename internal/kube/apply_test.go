// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func about(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name}
}

// The fake does server-side apply with field managers, but validates nothing.
func TestApplyEveryKind(t *testing.T) {
	for _, obj := range []Object{
		&corev1.ServiceAccount{ObjectMeta: about("x")},
		&corev1.Secret{ObjectMeta: about("x"), Data: map[string][]byte{"k": []byte("v")}},
		&corev1.ConfigMap{ObjectMeta: about("x"), Data: map[string]string{"k": "v"}},
		&corev1.Service{ObjectMeta: about("x"), Spec: corev1.ServiceSpec{ClusterIP: "None"}},
		&corev1.PersistentVolumeClaim{ObjectMeta: about("x")},
		&appsv1.StatefulSet{ObjectMeta: about("x"), Spec: appsv1.StatefulSetSpec{ServiceName: "x"}},
	} {
		client := fake.NewClientset()
		for range 2 {
			if err := Apply(t.Context(), client, obj); err != nil {
				t.Fatalf("%T: %v", obj, err)
			}
		}
		var verbs []string
		for _, action := range client.Actions() {
			verbs = append(verbs, action.GetVerb())
		}
		if diff := cmp.Diff([]string{"patch", "patch"}, verbs); diff != "" {
			t.Errorf("%T: requests (-want +got):\n%s", obj, diff)
		}
	}
}

func TestApplyLeavesOthersFields(t *testing.T) {
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: about("x"), Data: map[string]string{"theirs": "1", "ours": "1"}})
	if err := Apply(t.Context(), client, &corev1.ConfigMap{ObjectMeta: about("x"), Data: map[string]string{"ours": "2"}}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"theirs": "1", "ours": "2"}, got.Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
}

func TestApplyErrors(t *testing.T) {
	exists := answer(409, metav1.StatusReasonAlreadyExists, "exists")
	conflict := answer(409, metav1.StatusReasonConflict, "conflict")
	refused := answer(403, metav1.StatusReasonForbidden,
		`secrets "x" is forbidden: User "h-kim" cannot patch resource "secrets" in API group "" in the namespace "ns"`)
	for _, tc := range []struct {
		name    string
		answers []error
		want    fail.Reason // "" for success
	}{
		{"made by another at the same time", []error{exists}, ""},
		{"changed by another at the same time", []error{conflict, conflict}, ""},
		{"refused", []error{refused}, fail.PermissionDenied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			answers := slices.Clone(tc.answers)
			client.PrependReactor("patch", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
				if len(answers) == 0 {
					return false, nil, nil
				}
				err := answers[0]
				answers = answers[1:]
				return true, nil, err
			})
			err := Apply(t.Context(), client, &corev1.Secret{ObjectMeta: about("x")})
			var got fail.Reason
			if err != nil {
				got = fail.ReasonOf(err)
			}
			if got != tc.want {
				t.Errorf("got %q (%v), want %q", got, err, tc.want)
			}
		})
	}
	if err := Apply(t.Context(), fake.NewClientset(), &rbacv1.Role{ObjectMeta: about("x")}); err == nil {
		t.Error("a Role was applied: want an error")
	}
}

func TestApplyPatchSendsOnlyWhatIsSet(t *testing.T) {
	set := &appsv1.StatefulSet{
		ObjectMeta: about("x"),
		Spec: appsv1.StatefulSetSpec{
			ServiceName:          "x-headless",
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "ml-dev-workspace"}}},
		},
	}
	fields, err := Fields(set)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"x","namespace":"ns"},` +
		`"spec":{"serviceName":"x-headless","template":{"metadata":{},"spec":{}},"updateStrategy":{},` +
		`"volumeClaimTemplates":[{"metadata":{"name":"ml-dev-workspace"},"spec":{"resources":{}}}]}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}
