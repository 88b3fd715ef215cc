package install

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// reaperName is that of the reaper's CronJob, account and Role.
const reaperName = "mlenv-reaper"

// reaper gives back what nobody holds, beside all runs and with rights of its own: it
// reads what became of holders, and can delete nothing but a Lease.
func (r Request) reaper() []runtime.Object {
	objects := r.account(reaperName,
		rule("coordination.k8s.io", "leases")("get", "list", "delete"),
		rule("tekton.dev", "pipelineruns")("get"),
		// What the receipt of a run that left none says of its tasks.
		rule("tekton.dev", "taskruns")("list"),
		// Whether a step of the run is left, and whether the nodes are gone.
		rule("", "pods")("list", "watch"),
		rule("apps", "statefulsets")("list", "watch"),
		rule("", "configmaps")("get", "patch", "create"),
		rule("", "events")("create"),
	)
	job := r.cronJob(reaperName, reaperName, "* * * * *", []string{"reap"}, 58)
	return append(objects, job)
}

// account is a ServiceAccount with a Role of the same name.
func (r Request) account(name string, rules ...rbacv1.PolicyRule) []runtime.Object {
	return []runtime.Object{
		&corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: r.meta(name),
		},
		&rbacv1.Role{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
			ObjectMeta: r.meta(name),
			Rules:      rules,
		},
		&rbacv1.RoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
			ObjectMeta: r.meta(name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: r.Namespace}},
		},
	}
}

// cronJob runs a program of the steps' image at the times of a cron line, never twice at
// once, and ends it after a deadline in seconds. Its pods fit OpenShift's restricted-v2
// and the pod security level restricted.
func (r Request) cronJob(name, account, schedule string, command []string, deadline int64) *batchv1.CronJob {
	labels := commonLabels()
	labels["app.kubernetes.io/component"] = name
	return &batchv1.CronJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob"},
		ObjectMeta: r.meta(name),
		Spec: batchv1.CronJobSpec{
			Schedule:          schedule,
			ConcurrencyPolicy: batchv1.ForbidConcurrent,
			// A controller that was away starts the newest one only, and that soon or not at all.
			StartingDeadlineSeconds:    new(int64(60)),
			SuccessfulJobsHistoryLimit: new(int32(1)),
			FailedJobsHistoryLimit:     new(int32(3)),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				BackoffLimit:          new(int32(0)),
				ActiveDeadlineSeconds: &deadline,
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{
						ServiceAccountName: account,
						RestartPolicy:      corev1.RestartPolicyNever,
						SecurityContext: &corev1.PodSecurityContext{
							RunAsNonRoot:   new(true),
							SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						},
						Containers: []corev1.Container{{
							Name: name, Image: r.StepsImage, Command: command,
							SecurityContext: &corev1.SecurityContext{
								AllowPrivilegeEscalation: new(false),
								ReadOnlyRootFilesystem:   new(true),
								Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
							},
							Resources: corev1.ResourceRequirements{
								Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
								Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
							},
						}},
					},
				},
			}},
		},
	}
}
