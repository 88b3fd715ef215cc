// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// reaperJob returns the CronJob as it is installed.
func reaperJob(t *testing.T, r Request) *batchv1.CronJob {
	t.Helper()
	for _, object := range r.reaper() {
		if job, ok := object.(*batchv1.CronJob); ok {
			return job
		}
	}
	t.Fatal("there is no CronJob")
	return nil
}

// TestReaperProblem: mlenv up reports that nothing will release an environment. Its clock stands still.
func TestReaperProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		installed := reaperJob(t, request(t))
		suspended := installed.DeepCopy()
		suspended.Spec.Suspend = new(true)
		failing, neverRan := installed.DeepCopy(), installed.DeepCopy()
		hourAgo := metav1.NewTime(time.Now().Add(-time.Hour))
		failing.CreationTimestamp, neverRan.CreationTimestamp = hourAgo, hourAgo
		failing.Status.LastSuccessfulTime = new(metav1.NewTime(time.Now().Add(-11 * time.Minute)))
		for want, known := range map[string][]runtime.Object{
			"namespace team has no reaper":           nil,
			"CronJob team/mlenv-reaper is suspended": {suspended},
			"":                                       {installed},
			"no Job of CronJob team/mlenv-reaper has succeeded for 11m0s": {failing},
			"no Job of CronJob team/mlenv-reaper has succeeded for 1h0m":  {neverRan},
		} {
			got, next, err := ReaperProblem(t.Context(), &kube.Clients{Kube: fake.NewClientset(known...), Namespace: "team"})
			if err != nil || got != want || (next == "") != (want == "") {
				t.Errorf("%q, next %q, %v; want %q", got, next, err, want)
			}
		}
	})
	client := fake.NewClientset()
	client.PrependReactor("get", "cronjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(batchv1.Resource("cronjobs"), "mlenv-reaper", errors.New("no"))
	})
	if _, _, err := ReaperProblem(t.Context(), &kube.Clients{Kube: client, Namespace: "team"}); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("without the right: %v, want PermissionDenied", err)
	}
}

// TestReaperNotifies: the kubelet mounts the Secret with the URL; the account gets no right to read Secrets.
func TestReaperNotifies(t *testing.T) {
	r := request(t)
	plain := r.reaper()
	r.Cluster.Notify.Secret = "slack"
	for i, object := range r.reaper() {
		job, ok := object.(*batchv1.CronJob)
		if !ok {
			before, _ := json.Marshal(plain[i])
			if after, err := json.Marshal(object); err != nil || string(after) != string(before) {
				t.Errorf("with notify: %s, %v; want %s", after, err, before)
			}
			continue
		}
		pod := job.Spec.JobTemplate.Spec.Template.Spec
		container := pod.Containers[0]
		command := strings.Join(container.Command, " ")
		if command != "/ko-app/steps reap --notify-dir=/etc/mlenv/notify/slack --ca-file=/etc/mlenv/ca/ca-bundle.crt" {
			t.Errorf("command %q", command)
		}
		if len(pod.Volumes) != 2 || pod.Volumes[0].Secret.SecretName != "slack" || !*pod.Volumes[0].Secret.Optional ||
			pod.Volumes[1].ConfigMap.Name != "mlenv-trusted-ca" || len(container.VolumeMounts) != 2 ||
			container.VolumeMounts[0].MountPath != "/etc/mlenv/notify/slack" || container.VolumeMounts[1].MountPath != "/etc/mlenv/ca" {
			t.Errorf("volumes %+v, mounts %+v", pod.Volumes, container.VolumeMounts)
		}
	}
}
