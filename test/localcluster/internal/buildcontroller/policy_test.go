// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	buildv1 "github.com/openshift/api/build/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func build(number int, policy buildv1.BuildRunPolicy, phase buildv1.BuildPhase) buildv1.Build {
	return buildv1.Build{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "app-" + strconv.Itoa(number),
			Labels:      map[string]string{buildv1.BuildRunPolicyLabel: string(policy)},
			Annotations: map[string]string{buildv1.BuildConfigAnnotation: "app", buildv1.BuildNumberAnnotation: strconv.Itoa(number)},
		},
		Status: buildv1.BuildStatus{Phase: phase},
	}
}

func TestTurn(t *testing.T) {
	const (
		serial   = buildv1.BuildRunPolicySerial
		latest   = buildv1.BuildRunPolicySerialLatestOnly
		parallel = buildv1.BuildRunPolicyParallel
		waiting  = buildv1.BuildPhaseNew
		running  = buildv1.BuildPhaseRunning
		failed   = buildv1.BuildPhaseFailed
	)
	type phases map[int]buildv1.BuildPhase
	tests := []struct {
		name       string
		policy     buildv1.BuildRunPolicy
		number     int
		others     phases
		want       bool
		superseded []string
	}{
		{"alone", serial, 1, nil, true, nil},
		{"one runs", serial, 2, phases{1: running}, false, nil},
		{"one has ended", serial, 2, phases{1: failed}, true, nil},
		{"an older one waits", serial, 3, phases{1: failed, 2: waiting}, false, nil},
		{"a newer one waits", serial, 2, phases{3: waiting}, true, nil},
		{"latest only: an older one waits", latest, 3, phases{2: waiting}, true, []string{"app-2"}},
		{"latest only: one runs", latest, 3, phases{1: running, 2: waiting}, false, []string{"app-2"}},
		{"latest only: a newer one waits", latest, 2, phases{3: waiting}, false, nil},
		{"parallel", parallel, 2, phases{1: running}, true, nil},
		{"parallel, one of another policy runs", parallel, 2, phases{100: running}, false, nil},
	}
	for _, test := range tests {
		b := build(test.number, test.policy, waiting)
		others := []buildv1.Build{b}
		for number, phase := range test.others {
			policy := test.policy
			if number == 100 {
				policy = serial
			}
			others = append(others, build(number, policy, phase))
		}
		got, superseded := turn(&b, others)
		if got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if diff := cmp.Diff(test.superseded, superseded); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestSurplus(t *testing.T) {
	one, two := int32(1), int32(2)
	config := &buildv1.BuildConfig{Spec: buildv1.BuildConfigSpec{SuccessfulBuildsHistoryLimit: &one, FailedBuildsHistoryLimit: &two}}
	var builds []buildv1.Build
	for i, phase := range []buildv1.BuildPhase{
		buildv1.BuildPhaseComplete, buildv1.BuildPhaseFailed, buildv1.BuildPhaseError,
		buildv1.BuildPhaseCancelled, buildv1.BuildPhaseComplete, buildv1.BuildPhaseRunning,
	} {
		builds = append(builds, build(i+1, buildv1.BuildRunPolicySerial, phase))
	}
	if diff := cmp.Diff([]string{"app-1", "app-2"}, surplus(config, builds)); diff != "" {
		t.Error(diff)
	}
}
