// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

func TestLists(t *testing.T) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a",
		Labels: map[string]string{"x/y": "true", "z": "Running"}}}
	configs := apitest.Start(t, config).Clients(nil).Kube.CoreV1().ConfigMaps("ns")
	for options, want := range map[metav1.ListOptions]int{
		{}: 1, {LabelSelector: "x/y=true"}: 1, {LabelSelector: "x/y=true,z=Running"}: 1, {LabelSelector: "x/y=false"}: 0,
		{FieldSelector: "metadata.name=b"}: 0,
	} {
		if all, err := configs.List(t.Context(), options); err != nil || len(all.Items) != want {
			t.Errorf("%+v: %v, %v; want %d", options, all, err, want)
		}
	}
}
