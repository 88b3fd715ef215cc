// SPDX-License-Identifier: Apache-2.0

package kube

import "testing"

func TestInternalImage(t *testing.T) {
	const service = "image-registry.openshift-image-registry.svc"
	for image, want := range map[string][2]string{
		service + ":5000/team/train:1":                                                  {"team", "train"},
		service + ".cluster.local:5000/team/train@sha256:1":                             {"team", "train"},
		service + "/team/train":                                                         {"team", "train"},
		"default-route-openshift-image-registry.apps.example.com/team/train:1@sha256:1": {"team", "train"},
		"quay.io/team/train:1":                                                          {},
		"team/train":                                                                    {},
		service:                                                                         {},
		service + ":5000/team":                                                          {},
		service + ":5000/a/b/c:1":                                                       {},
		"example.com/" + service + "/x:1":                                               {},
	} {
		namespace, stream, ok := InternalImage(image)
		if got := [2]string{namespace, stream}; got != want || ok != (want[0] != "") {
			t.Errorf("%s: %v, %t; want %v", image, got, ok, want)
		}
	}
}
