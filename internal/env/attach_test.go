// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"log/slog"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// Attach changes the Lease before the command starts anything, or the reaper would release an environment that it has just seen unused.
func TestAttachRenewsWhatAPersonHolds(t *testing.T) {
	made := agenttest.Start(t, 1)[0].Certificates()
	secret := &corev1.Secret{ObjectMeta: about("env-agent-client"), Data: map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert,
		"tls.key": made.ClientKey}}
	me, held := "h-kim", &coordinationv1.Lease{ObjectMeta: about("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("h-kim")}}
	held.Annotations = map[string]string{lease.IdleAnnotation: "1h"}
	clients := &kube.Clients{Namespace: "ns", Tekton: tektonfake.NewSimpleClientset(), Kube: fake.NewClientset(
		secret, &appsv1.StatefulSet{ObjectMeta: about("env")}, held)}
	clients.Kube.(*fake.Clientset).PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true,
			&authenticationv1.SelfSubjectReview{
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: me}}}, nil
	})
	_, detach, err := Of(clients, "env").Attach(t.Context(), slog.New(slog.DiscardHandler), "", run.Flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	leases := clients.Kube.CoordinationV1().Leases("ns")
	held, err = leases.Get(t.Context(), "env", metav1.GetOptions{})
	if err != nil || held.Spec.RenewTime == nil {
		t.Errorf("the lease is %+v, %v; want it renewed", held, err)
	}
	me = "another user"
	if _, detach, err := Of(clients, "env").Attach(t.Context(), slog.New(slog.DiscardHandler), "", run.Flags{}); err != nil {
		t.Error(err)
	} else {
		detach()
	}
	if held, err = leases.Get(t.Context(), "env", metav1.GetOptions{}); err != nil || held.Annotations[lease.UsedAnnotation] == "" {
		t.Errorf("the lease is %+v, %v; want the use by a person who does not hold it", held, err)
	}
	me = "h-kim"
	client := clients.Kube.(*fake.Clientset)
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { // the reaper was faster
		_ = client.Tracker().Delete(coordinationv1.SchemeGroupVersion.WithResource("leases"), "ns", "env")
		return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "env", nil)
	})
	if _, _, err := Of(clients, "env").Attach(t.Context(), slog.New(slog.DiscardHandler), "", run.Flags{}); fail.ReasonOf(err) !=
		fail.EnvironmentMissing {
		t.Errorf("an environment that is released meanwhile: %v, want EnvironmentMissing", err)
	}
}

// The fake collects no garbage, so the test checks only the Lease.
func TestDetachGivesBackWhereNoTeardownFollows(t *testing.T) {
	made := agenttest.Start(t, 1)[0].Certificates()
	secret := &corev1.Secret{ObjectMeta: about("env-agent-client"), Data: map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert,
		"tls.key": made.ClientKey}}
	for _, tc := range []struct {
		name   string
		status v1.PipelineRunSpecStatus
		ended  bool // the step was told to end
		kept   bool
	}{
		{"the step is done", v1.PipelineRunSpecStatusCancelled, false, true},
		{"cancelled", v1.PipelineRunSpecStatusCancelled, true, false},
		{"cancelled with finally tasks", v1.PipelineRunSpecStatusCancelledRunFinally, true, true},
		{"evicted", "", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			holder := "uid-1"
			found := &v1.PipelineRun{ObjectMeta: about("run"), Spec: v1.PipelineRunSpec{Status: tc.status}}
			found.UID = "uid-1"
			clients := &kube.Clients{Namespace: "ns", Tekton: tektonfake.NewSimpleClientset(found), Kube: fake.NewClientset(
				secret, &appsv1.StatefulSet{ObjectMeta: about("env")},
				&coordinationv1.Lease{ObjectMeta: about("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}})}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			of := run.Flags{Name: "run", UID: "uid-1", Task: "train"}
			_, detach, err := Of(clients, "env").Attach(ctx, slog.New(slog.DiscardHandler), "", of)
			if err != nil {
				t.Fatal(err)
			}
			if tc.ended {
				cancel()
			}
			detach()
			_, err = clients.Kube.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
			if apierrors.IsNotFound(err) == tc.kept {
				t.Errorf("the lease: %v; want kept %t", err, tc.kept)
			}
			of.UID = "uid-2"
			if _, _, err := Of(clients, "env").Attach(t.Context(), slog.New(slog.DiscardHandler), "", of); fail.ReasonOf(
				err) != fail.EnvironmentMissing {
				t.Errorf("another run: got %v, want EnvironmentMissing", err)
			}
		})
	}
}
