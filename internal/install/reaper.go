// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cronjob"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

const reaperName = "mlenv-reaper"

// ReaperProblem returns why nothing in the clients' namespace releases environments that are idle or whose time is over, as a clause of a
// message, and the command that changes it; both are "" if the reaper releases them.
func ReaperProblem(ctx context.Context, clients *kube.Clients) (problem, next string, err error) {
	again := "mlenv install clusters/CLUSTER.yaml --namespace=" + clients.Namespace
	found, err := clients.Kube.BatchV1().CronJobs(clients.Namespace).Get(ctx, reaperName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "namespace " + clients.Namespace + " has no reaper", again, nil
	case err != nil:
		return "", "", kube.Problem(fmt.Errorf("getting cronjob %s/%s: %w", clients.Namespace, reaperName, err))
	}
	silence := silent(clients, found)
	switch {
	case found.Spec.Suspend != nil && *found.Spec.Suspend:
		return fmt.Sprintf("CronJob %s/%s is suspended", clients.Namespace, reaperName),
			fmt.Sprintf(`oc patch cronjob %s -n %s --patch='{"spec":{"suspend":false}}'`, reaperName, clients.Namespace), nil
	case silence > reaperSilence:
		return fmt.Sprintf("no Job of CronJob %s/%s has succeeded for %s", clients.Namespace, reaperName,
				humanize.Duration(silence)),
			fmt.Sprintf("oc get pods,events -n %s | grep %s; or: %s", clients.Namespace, reaperName, again), nil
	}
	return "", "", nil
}

// reaperSilence is how long the reaper may fail, a Job each minute.
const reaperSilence = 10 * time.Minute

// silent returns for how long no Job of the CronJob has succeeded.
func silent(clients *kube.Clients, job *batchv1.CronJob) time.Duration {
	last := job.CreationTimestamp
	if at := job.Status.LastSuccessfulTime; at != nil {
		last = *at
	}
	if last.IsZero() {
		return 0
	}
	return clients.Now().Sub(last.Time)
}

// reaper releases abandoned and idle environments, outside all runs and with its own rights: it reads the state of holders, can delete
// only Leases, and change only TaskRuns and receipts.
func (r Request) reaper() []runtime.Object {
	job := cronjob.Job{
		Name: reaperName, Namespace: r.Namespace, Labels: Labels(NamespacePart),
		Schedule: "* * * * *", Image: r.StepsImage, Command: []string{agent.StepsProgram, "reap"}, StartWithin: 60,
	}
	if secret := r.Cluster.Notify.Secret; secret != "" {
		job.Notify(secret, cluster.TrustedCA, cluster.TrustedCAKey)
	}
	spec := job.CronJob()
	// A Job does not end while a pod of it may still run (kubernetes.io/docs/concepts/workloads/controllers/job,
	// termination of Job Pods): a pod on a lost node would block all later Jobs. Two Jobs in parallel are harmless, because
	// each deletes only Leases that have not changed since it read them.
	spec.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
	spec.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = new(int64(58)) // the next Job starts after a minute
	return append(job.Account(
		policyRule("coordination.k8s.io", "leases")("get", "list", "delete"),
		policyRule("tekton.dev", "pipelineruns")("get"),
		// For the receipt of a run that wrote none, and to annotate one whose pod Tekton has lost.
		policyRule("tekton.dev", "taskruns")("list", "patch"),
		// To wait for the run's steps and the nodes to end, and to find the nodes of a person's environment.
		policyRule("", "pods")("list", "watch"),
		policyRule("apps", "statefulsets")("list", "watch"),
		// Receipts, and the certificate with which nodes report their last use.
		policyRule("", "configmaps")("get", "list", "create", "patch"),
		policyRule("", "events")("create"),
	), spec)
}
