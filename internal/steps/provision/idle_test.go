// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// byHand makes a user the holder instead of a run.
func (p *place) byHand(s *provisioner) {
	s.options.Run = run.Flags{}
	p.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: "h-kim"}}}, nil
	})
}

// A person's environment has its idle-timeout on the Lease and a certificate for the reaper. A run's has neither.
func TestIdleTimeout(t *testing.T) {
	for _, tc := range []struct {
		name, given string
		person      bool
		want        string // of the Lease
	}{
		{"given", "30m", true, "30m0s"},
		{"the cluster file's", "", true, "2h0m0s"},
		{"never", "0", true, ""},
		{"a run's", "30m", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t).withRun(day())
			step := p.provisioner(func(s *provisioner) {
				s.options.Request.Cluster, s.options.IdleTimeout = cluster.Default(), tc.given
				if tc.person {
					p.byHand(s)
				}
			})
			if _, err := step.run(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, p.messages())
			}
			held, err := p.kube.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if err != nil || held.Annotations[lease.IdleAnnotation] != tc.want {
				t.Errorf("annotations %v, %v; want %q", held.Annotations, err, tc.want)
			}
			config, err := p.kube.CoreV1().ConfigMaps("ns").Get(t.Context(), "env-agent-use", metav1.GetOptions{})
			if tc.person != (err == nil) || !tc.person && !apierrors.IsNotFound(err) {
				t.Errorf("the certificate: %v, %v", config, err)
			}
			if tc.person && (len(config.OwnerReferences) != 1 || config.OwnerReferences[0].Name != "env") {
				t.Errorf("owners %v, want the Lease", config.OwnerReferences)
			}
			if tc.want == "" {
				return
			}
			// The agents know the certificate, and requesting the environment again is use.
			idle, err := env.Of(step.clients, "env").Idle(t.Context(), held)
			if err != nil || idle == nil || idle.Over() || idle.Timeout.String() != tc.want {
				t.Fatalf("idle: %+v, %v", idle, err)
			}
			again := p.provisioner(func(s *provisioner) {
				s.options.Request.Cluster, s.options.IdleTimeout = cluster.Default(), tc.given
				p.byHand(s)
			})
			if _, err := again.run(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, p.messages())
			}
			later, err := env.Of(step.clients, "env").Idle(t.Context(), held)
			if err != nil || !later.Use.At.After(idle.Use.At) {
				t.Errorf("last use %+v, %v; want it later than %s", later, err, idle.Use.At)
			}
			if strings.Contains(p.messages(), "was not started again") {
				t.Errorf("log %s", p.messages())
			}
		})
	}
}
