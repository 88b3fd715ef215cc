package install

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/install/cronjob"
)

// reaperName is the name of all its objects.
const reaperName = "mlenv-reaper"

// reaperDeadline is less than the minute after which the next one starts.
const reaperDeadline = 58 // seconds

// reaper gives back what nobody holds, beside all runs and with rights of its own: it
// reads what became of holders, and can delete nothing but a Lease.
func (r Request) reaper() []runtime.Object {
	job := cronjob.Job{
		Name: reaperName, Namespace: r.Namespace, Labels: Labels(NamespacePart),
		Schedule: "* * * * *", Image: r.StepsImage, Command: []string{"reap"}, StartWithin: 60,
	}
	spec := job.CronJob()
	// A Job has not ended while a pod of it may still run (kubernetes.io/docs/concepts/workloads/controllers/job,
	// termination of Job Pods): one on a node that is gone would keep all later ones from starting. Two at once
	// do no harm, for each deletes only what still is as it has seen it.
	spec.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
	spec.Spec.JobTemplate.Spec.ActiveDeadlineSeconds = new(int64(reaperDeadline))
	return append(job.Account(
		rule("coordination.k8s.io", "leases")("get", "list", "delete"),
		rule("tekton.dev", "pipelineruns")("get"),
		// What the receipt of a run that left none says of its tasks.
		rule("tekton.dev", "taskruns")("list"),
		// Whether a step of the run is left, and whether the nodes are gone.
		rule("", "pods")("list", "watch"),
		rule("apps", "statefulsets")("list", "watch"),
		// Receipts.
		rule("", "configmaps")("get", "create", "patch"),
		rule("", "events")("create"),
	), spec)
}
