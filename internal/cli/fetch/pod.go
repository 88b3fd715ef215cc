// SPDX-License-Identifier: Apache-2.0

// Package fetch copies files of claims to this machine without an environment: a pod of the steps image mounts a claim, read-only
// unless it deletes files, lists its files with their hashes, and sends what is missing.
package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

const (
	// startTime is how long the pod may take to run, including the pull of its image.
	startTime = 3 * time.Minute
	// lifetime bounds the pod that reads a claim. If its creator was killed, it ends by itself, half an hour after the last request.
	lifetime = 6 * time.Hour
	// removeTime is how long the pod's deletion may take, after Ctrl-C too.
	removeTime = 15 * time.Second
	// container is the name of the pod's container and volume.
	container                 = "files"
	account                   = "default"
	componentLabel, component = "app.kubernetes.io/component", "fetch"
)

// Claim is a claim to fetch from, or to delete files on.
type Claim struct {
	Name string
	// For begins the pod's name: a run, or a purpose.
	For string
	// StepsImage is the image of the pod; "" selects the steps image of the installed pipeline, or else of the newest run.
	StepsImage string
	// Notes gets a line if the pod has to wait for its pull secrets.
	Notes io.Writer
	// Local reports that Name is a folder of this machine, which the agent's program reads without a pod.
	Local bool
	write bool
}

// String names the claim.
func (c Claim) String() string {
	if c.Local {
		return c.Name
	}
	return "claim " + c.Name
}

// RecordOf returns the folder, on the workspace claim, of the record of the run with that UID.
func RecordOf(uid string) string {
	return path.Join(agent.RecordFolder, uid)
}

// WorkOf returns the folder, on the workspace claim, of the working directory of the run with that UID.
func WorkOf(uid string) string { return path.Join(agent.WorkFolder, uid) }

type pod struct {
	clients *kube.Clients
	name    string
	uid     types.UID
	// run runs a file command of the agent in the pod.
	run func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error
	// pause is the time before an attempt after a broken connection.
	pause time.Duration
}

// mostOfName is how many bytes of a run's name the pod's name contains: a name has at most 63.
const mostOfName = 50

// startPod creates the pod and waits until it runs. The caller must remove it.
func startPod(ctx context.Context, clients *kube.Clients, claim Claim) (*pod, error) {
	if claim.Local {
		return &pod{clients: clients, pause: time.Second, run: localRun(claim.Name)}, nil
	}
	pods := clients.Kube.CoreV1().Pods(clients.Namespace)
	if _, err := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace).Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
		return nil, kube.Problem(fmt.Errorf("looking for claim %s/%s: %w", clients.Namespace, claim.Name, err))
	}
	if err := envflags.Allowed(ctx, clients, "starting a pod that reads the claim",
		envflags.AccessTo(clients, "", "pods", "", "create", "get", "list", "watch", "delete"),
		envflags.AccessTo(clients, "", "pods/exec", "", "create")); err != nil {
		return nil, err
	}
	image, err := stepsImage(ctx, clients, claim)
	if err != nil {
		return nil, err
	}
	// If the account may not be read, the pod shows whether its image can be pulled.
	owner, err := clients.AccountWithPullSecrets(ctx, clients.Namespace, account, func(line string) { fmt.Fprintln(claim.Notes, line) })
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing pods in %s: %w", clients.Namespace, err))
	}
	if err := removeEnded(ctx, clients, all.Items); err != nil {
		return nil, err
	}
	spec := podOf(claim, image)
	for _, file := range clusterfile.InstalledFiles(ctx, clients) { // the files belong to the user of the nodes
		objects.SetUser(spec.Spec.SecurityContext, file.Security.RunAsUser)
	}
	placeNear(spec, claim.Name, all.Items)
	if owner != nil { // the Secrets with which the steps pull the image
		linked := clients.LinkedPullSecrets(ctx, clients.Namespace, launch.Account(ctx, clients))
		spec.Spec.ImagePullSecrets = kube.PodPullSecrets(linked, owner)
	}
	created, err := pods.Create(ctx, spec, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("creating a pod that mounts claim %s/%s: %w", clients.Namespace, claim.Name, err))
	}
	p := &pod{clients: clients, name: created.Name, uid: created.UID, pause: time.Second}
	p.run = p.exec
	if err := p.wait(ctx); err != nil {
		return nil, errors.Join(err, p.remove(ctx))
	}
	return p, nil
}

// stepsImage returns the image of the steps. Claims outlive mlenv uninstall; after it the runs that are left name the image.
func stepsImage(ctx context.Context, clients *kube.Clients, claim Claim) (string, error) {
	if claim.StepsImage != "" {
		return claim.StepsImage, nil
	}
	pipeline, missing := launch.Installed(ctx, clients)
	switch {
	case missing == nil:
		return launch.ParamValue(pipeline, nil, "steps-image"), nil
	case fail.ReasonOf(missing) != fail.InvalidInput:
		return "", missing
	}
	selector := metav1.ListOptions{LabelSelector: "tekton.dev/pipeline=" + launch.Pipeline}
	runs, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).List(ctx, selector)
	if err != nil {
		return "", kube.Problem(fmt.Errorf("listing pipelineruns in %s: %w", clients.Namespace, err))
	}
	slices.SortFunc(runs.Items, func(a, b v1.PipelineRun) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range runs.Items {
		if image := launch.ValueOf(&runs.Items[i], "steps-image"); image != "" {
			return image, nil
		}
	}
	return "", fail.Advise(missing, "mlenv fetch RUN -n %[1]s --steps-image=IMAGE, or install the pipeline again: "+
		"mlenv install FILE -n %[1]s", clients.Namespace)
}

// removeEnded deletes ended pods of earlier calls that were killed before they could.
func removeEnded(ctx context.Context, clients *kube.Clients, all []corev1.Pod) error {
	for _, other := range all {
		if other.Labels[componentLabel] != component || !kube.HasEnded(&other) {
			continue
		}
		if err := (&pod{clients: clients, name: other.Name, uid: other.UID}).remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// podOf returns an unprivileged pod that fits OpenShift's restricted-v2. It has no label of an environment, because
// teardown would wait for it.
func podOf(claim Claim, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			// Not a name by the API server: a create whose answer is lost can be sent again.
			Name:   strings.TrimRight(claim.For[:min(len(claim.For), mostOfName)], ".-") + "-fetch-" + rand.String(5),
			Labels: map[string]string{"app.kubernetes.io/part-of": "ml-dev-env", componentLabel: component},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ServiceAccountName:            account,
			ActiveDeadlineSeconds:         new(int64(lifetime / time.Second)),
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: container, Image: image, Command: []string{agent.StepsProgram, "agent", "files", "hold"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				// A quota may require them. A list of a million files takes about 1 GiB.
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: container, MountPath: agent.Workspace, ReadOnly: !claim.write}},
			}},
			Volumes: []corev1.Volume{{Name: container, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name, ReadOnly: !claim.write},
			}}},
		},
	}
}

// placeNear puts the pod on the node of a pod that mounts the claim: no other node can mount a ReadWriteOnce claim.
func placeNear(pod *corev1.Pod, claim string, others []corev1.Pod) {
	for _, other := range others {
		if !Mounts(&other, claim) || other.Spec.NodeName == "" || other.Status.Phase != corev1.PodRunning {
			continue
		}
		pod.Spec.Tolerations = other.Spec.Tolerations
		pod.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{other.Spec.NodeName}},
				}}},
			}}}
		return
	}
}

func (p *pod) wait(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	seen := "not scheduled yet"
	err := kube.UntilOne(waiting, "pod "+p.name, p.clients.Kube.CoreV1().Pods(p.clients.Namespace), p.name,
		func(pod *corev1.Pod) (bool, error) {
			if pod == nil {
				return false, fmt.Errorf("waiting for pod %s/%s: it was deleted", p.clients.Namespace, p.name)
			}
			if kube.HasEnded(pod) {
				return false, fail.Becausef(fail.ContainerFailed, "waiting for pod %s/%s: it has ended: %s %s", p.clients.Namespace, p.name,
					pod.Status.Reason, pod.Status.Message)
			}
			seen = pending(pod)
			return pod.Status.Phase == corev1.PodRunning, nil
		})
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return fail.Becausef(fail.PodsNotReady, "waiting for pod %s/%s, which mounts the claim: it does not run after %s: %s",
			p.clients.Namespace, p.name, startTime, seen)
	}
	return err
}

func pending(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil {
			return strings.TrimSpace(status.State.Waiting.Reason + " " + status.State.Waiting.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			return condition.Message
		}
	}
	return string(pod.Status.Phase)
}

// remove deletes the pod, even after ctx has ended.
func (p *pod) remove(ctx context.Context) error {
	if p.name == "" {
		return nil // a folder needs none
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	err := p.clients.Kube.CoreV1().Pods(p.clients.Namespace).Delete(ctx, p.name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.uid}})
	return kube.Deleted("pod "+p.clients.Namespace+"/"+p.name, err)
}

// localRun returns a function that runs a file command of the agent for a folder of this machine. This program is the agent's.
func localRun(folder string) func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	return func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		args = slices.Clone(args)
		args[1] = filepath.Join(folder, strings.TrimPrefix(args[1], agent.Workspace)) // each command begins with its folder
		var stderr bytes.Buffer
		command := exec.CommandContext(ctx, self, append([]string{"files"}, args...)...)
		command.Args[0] = agent.ProgramName
		command.Stdin, command.Stdout, command.Stderr = stdin, stdout, &stderr
		err = command.Run()
		if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
			return fmt.Errorf("%s: %w", strings.TrimSpace(stderr.String()), &kube.ExitError{Code: exited.ExitCode()})
		}
		return err
	}
}

func (p *pod) exec(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	var stderr bytes.Buffer
	err := kube.Exec{
		Namespace: p.clients.Namespace, Pod: p.name, Container: container,
		Command: append([]string{agent.StepsProgram, "agent", "files"}, args...), Stdin: stdin, Stdout: stdout, Stderr: &stderr,
	}.Run(ctx, p.clients)
	if err != nil && stderr.Len() > 0 {
		return fmt.Errorf("%s: %w", strings.TrimSpace(stderr.String()), err)
	}
	return err
}
