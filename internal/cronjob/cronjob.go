// SPDX-License-Identifier: Apache-2.0

// Package cronjob renders CronJobs that run a program of the steps image, each with its own account and Role.
package cronjob

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Job describes a CronJob.
type Job struct {
	// Name of the CronJob, and of its account and Role.
	Name        string
	Namespace   string
	Labels      map[string]string
	Annotations map[string]string
	// Schedule has cron's five fields.
	Schedule string
	// TimeZone is a name such as Europe/Madrid, or "" for the cluster's.
	TimeZone string
	// Image of the steps, by digest.
	Image   string
	Command []string
	// StartWithin is how many seconds late a Job may start, for example after the controller restarted.
	StartWithin int64
	Env         []corev1.EnvVar
	Volumes     []corev1.Volume
	Mounts      []corev1.VolumeMount
}

// Notify lets the program post events to the URL in a Secret, with the flags of notify.Flags. bundle is the ConfigMap of further
// certificates to trust, and key theirs. The kubelet mounts both, so the account needs no right to read them; either may be missing.
func (j *Job) Notify(secret, bundle, key string) {
	const dir, ca = "/etc/mlenv/notify/", "/etc/mlenv/ca"
	j.Command = append(j.Command, "--notify-dir="+dir+secret, "--ca-file="+ca+"/"+key)
	j.Volumes = append(j.Volumes,
		corev1.Volume{Name: "notify", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret,
			Items: []corev1.KeyToPath{{Key: "url", Path: "url"}}, Optional: new(true)}}},
		corev1.Volume{Name: "trusted-ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: bundle}, Optional: new(true)}}})
	j.Mounts = append(j.Mounts, corev1.VolumeMount{Name: "notify", MountPath: dir + secret, ReadOnly: true},
		corev1.VolumeMount{Name: "trusted-ca", MountPath: ca, ReadOnly: true})
}

// Account returns a ServiceAccount with exactly these rights in its namespace.
func (j Job) Account(rules ...rbacv1.PolicyRule) []runtime.Object {
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: j.meta()},
		&rbacv1.Role{ObjectMeta: j.meta(), Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: j.meta(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: j.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: j.Name, Namespace: j.Namespace}},
		},
	}
}

// CronJob starts no Job while another one runs, and does not retry a failed pod. Its pods fit OpenShift's restricted-v2 and
// the pod security level restricted.
func (j Job) CronJob() *batchv1.CronJob {
	meta := j.meta()
	meta.Annotations = j.Annotations
	job := &batchv1.CronJob{
		ObjectMeta: meta,
		Spec: batchv1.CronJobSpec{
			Schedule:                   j.Schedule,
			ConcurrencyPolicy:          batchv1.ForbidConcurrent,
			StartingDeadlineSeconds:    &j.StartWithin,
			SuccessfulJobsHistoryLimit: new(int32(1)),
			FailedJobsHistoryLimit:     new(int32(3)),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
				BackoffLimit: new(int32(0)),
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: j.Labels},
					Spec: corev1.PodSpec{
						ServiceAccountName: j.Name,
						RestartPolicy:      corev1.RestartPolicyNever,
						SecurityContext: &corev1.PodSecurityContext{
							RunAsNonRoot:   new(true),
							SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						},
						Containers: []corev1.Container{j.container()},
						Volumes:    j.Volumes,
					},
				},
			}},
		},
	}
	if j.TimeZone != "" {
		job.Spec.TimeZone = &j.TimeZone
	}
	return job
}

func (j Job) container() corev1.Container {
	return corev1.Container{
		Name: Container, Image: j.Image, Command: j.Command, Env: j.Env, VolumeMounts: j.Mounts,
		// So that kubectl describe shows why a Job failed.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
	}
}

// Container is the name of the only container.
const Container = "mlenv"

func (j Job) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: j.Name, Namespace: j.Namespace, Labels: j.Labels}
}
