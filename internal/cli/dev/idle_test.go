// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/locked"
)

// A terminal warns once before the release, and again after the next use.
func TestTerminalWarnsOfRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used atomic.Pointer[time.Time]
		var away atomic.Bool
		use := func(at time.Time) { used.Store(&at) }
		use(time.Now())
		var log locked.Buffer
		stop := watchIdle(t.Context(), command.TextLog(&log), func(context.Context) (*env.Idle, error) {
			if away.Load() {
				return nil, errors.New("the node does not answer")
			}
			return &env.Idle{Environment: "ns/env", Holder: lease.Holder{ID: "h-kim", Display: "h-kim"}, Timeout: 30 * time.Minute,
				Use: agent.Use{Kind: agent.JobUse, Idle: time.Since(*used.Load()), At: *used.Load()}}, nil
		})
		after := func(pass time.Duration, want string) {
			t.Helper()
			time.Sleep(pass)
			synctest.Wait()
			if got := log.String(); got != want {
				t.Errorf("after %s: %q, want %q", pass, got, want)
			}
			log.Reset()
		}
		const warning = "warning: Environment ns/env of h-kim has not been used for 20m0s (last: a job). It is released in 10m0s unless it " +
			"is used; claims stay.\n"
		after(19*time.Minute, "")
		after(time.Minute, warning)
		after(5*time.Minute, "")
		use(time.Now())
		away.Store(true)
		after(25*time.Minute, "")
		use(time.Now())
		away.Store(false)
		after(20*time.Minute, warning)
		stop()
		use(time.Now().Add(-20 * time.Minute))
		after(5*time.Minute, "")
	})
}

// mlenv up reports who releases an idle environment, or that nothing does.
func TestUpReportsTheReaper(t *testing.T) {
	forbidden := fake.NewClientset()
	forbidden.PrependReactor("get", "cronjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(batchv1.Resource("cronjobs"), "mlenv-reaper", errors.New("no"))
	})
	installed := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mlenv-reaper"}}
	for name, tc := range map[string]struct {
		client  kubernetes.Interface
		timeout time.Duration
		want    string
	}{
		"installed": {fake.NewClientset(installed), 2 * time.Hour, "The reaper also releases it when it was not used for 2h0m: "},
		"missing": {fake.NewClientset(), 2 * time.Hour, "warning: Nothing will release the environment when it was not used for 2h0m: no job, " +
			"open shell, browser session or busy GPU, or when its time is over: namespace ns has no reaper.\n  next: mlenv install " +
			"clusters/CLUSTER.yaml --namespace=ns\n"},
		"not known": {forbidden, 2 * time.Hour, "warning: If the reaper works, it releases the environment when it was not used for 2h0m"},
		"never":     {fake.NewClientset(installed), 0, ""},
		"never, and nothing ends it": {fake.NewClientset(), 0,
			"warning: Nothing will release the environment when its time is over: namespace ns has no reaper.\n"},
	} {
		var log bytes.Buffer
		reportReaper(t.Context(), command.TextLog(&log), &kube.Clients{Kube: tc.client, Namespace: "ns"}, tc.timeout)
		if !strings.HasPrefix(log.String(), tc.want) || tc.want == "" && log.Len() > 0 {
			t.Errorf("%s: %q, want %q", name, log.String(), tc.want)
		}
	}
}
