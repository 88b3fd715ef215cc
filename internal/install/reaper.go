package install

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/cronjob"
)

const reaperName = "mlenv-reaper"

// reaper releases abandoned environments, outside all runs and with its own rights: it reads the state of holders, and can
// delete only Leases.
func (r Request) reaper() []runtime.Object {
	job := cronjob.Job{
		Name: reaperName, Namespace: r.Namespace, Labels: Labels(NamespacePart),
		Schedule: "* * * * *", Image: r.StepsImage, Command: []string{"reap"}, StartWithin: 60,
	}
	spec := job.CronJob()
	// A Job does not end while a pod of it may still run (kubernetes.io/docs/concepts/workloads/controllers/job,
	// termination of Job Pods): a pod on a lost node would block all later Jobs. Two Jobs in parallel are harmless, because
	// each deletes only Leases that have not changed since it read them.
	spec.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
	spec.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = new(int64(58)) // the next Job starts after a minute
	return append(job.Account(
		rule("coordination.k8s.io", "leases")("get", "list", "delete"),
		rule("tekton.dev", "pipelineruns")("get"),
		// For the receipt of a run that wrote none.
		rule("tekton.dev", "taskruns")("list"),
		// To wait for the run's steps and the nodes to end.
		rule("", "pods")("list", "watch"),
		rule("apps", "statefulsets")("list", "watch"),
		// Receipts.
		rule("", "configmaps")("get", "list", "create", "patch"),
		rule("", "events")("create"),
	), spec)
}
