// SPDX-License-Identifier: Apache-2.0

package clusterfile

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

func TestLoadInstalled(t *testing.T) {
	for _, tc := range []struct {
		name, wanted string
		installed    []string
		found, fails string
	}{
		{"the only one", "", []string{"cairo"}, "cairo", ""},
		{"by name", "barcelona", []string{"cairo", "barcelona"}, "barcelona", ""},
		{"which of two", "", []string{"cairo", "barcelona"}, "", "installed are: barcelona, cairo"},
		{"none", "", nil, "", "installed are: none"},
		{"another name", "nerc", []string{"cairo"}, "", "looking for cluster file nerc in namespace ns: installed are: cairo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns"}})
			for _, name := range tc.installed {
				content, err := os.ReadFile("../../clusters/" + name + ".yaml")
				if err != nil {
					t.Fatal(err)
				}
				config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mlenv-cluster-" + name, Namespace: "ns"},
					Data: map[string]string{"cluster.yaml": string(content)}}
				if err := client.Tracker().Add(config); err != nil {
					t.Fatal(err)
				}
			}
			file, err := LoadInstalled(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, tc.wanted)
			if file.Cluster.Name != tc.found {
				t.Errorf("got %s, want %s", file.Cluster.Name, tc.found)
			}
			if tc.fails == "" && err != nil || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails) || fail.NextOf(err) == "") {
				t.Errorf("got %v, want %q", err, tc.fails)
			}
		})
	}
}
