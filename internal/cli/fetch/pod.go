// Package fetch brings files from claims to this machine, and from here onto claims, when no
// environment may be there: a pod of the steps' image mounts a claim, read-only if it only
// reads, lists what lies there with its hashes, and sends or takes what is missing.
package fetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

const (
	// startTime is how long the pod may take to run, its image's pull included.
	startTime = 3 * time.Minute
	// lifetime ends a pod whose maker was killed, where it does not find out by itself.
	lifetime = 6 * time.Hour
	// removeTime is for the pod's deletion, also after Ctrl-C.
	removeTime = 15 * time.Second
	// container and volume of the pod.
	container = "files"
	// mounted is where the claim is.
	mounted = "/workspace"
	program = "/mlenv-agent"
)

// Claim is one to fetch from, or to give to.
type Claim struct {
	Name string
	// For names the pod: a run, or what it is made for.
	For string
	// write mounts it so that files can come onto it.
	write bool
}

// RecordOf is the folder, on the workspace's claim, of the record of the run with that UID.
func RecordOf(uid string) string {
	return strings.TrimPrefix(path.Join(agent.State, "runs", uid), mounted+"/")
}

// source is a pod that files are fetched from.
type source struct {
	clients *kube.Clients
	pod     string
}

// open makes the pod and waits until it runs. What is opened must be removed.
func open(ctx context.Context, clients *kube.Clients, claim Claim) (*source, error) {
	pods := clients.Kube.CoreV1().Pods(clients.Namespace)
	if _, err := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace).Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
		return nil, kube.Problem(fmt.Errorf("looking for claim %s/%s: %w", clients.Namespace, claim.Name, err))
	}
	pipeline, err := launch.Installed(ctx, clients, clients.Namespace, launch.Pipeline)
	if err != nil {
		return nil, err
	}
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing pods in %s: %w", clients.Namespace, err))
	}
	if err := sweep(ctx, clients, all.Items); err != nil {
		return nil, err
	}
	wanted := podOf(claim, launch.Value(pipeline, nil, "steps-image"))
	beside(wanted, claim.Name, all.Items)
	made, err := pods.Create(ctx, wanted, metav1.CreateOptions{FieldManager: kube.FieldManager})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("making a pod to mount claim %s/%s in: %w", clients.Namespace, claim.Name, err))
	}
	s := &source{clients: clients, pod: made.Name}
	if err := s.wait(ctx); err != nil {
		return nil, errors.Join(err, s.remove(ctx))
	}
	return s, nil
}

// componentLabel marks these pods.
const componentLabel, component = "app.kubernetes.io/component", "fetch"

// sweep deletes pods of earlier calls that have ended: their makers were killed, for who makes one deletes it.
func sweep(ctx context.Context, clients *kube.Clients, all []corev1.Pod) error {
	for _, pod := range all {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Labels[componentLabel] != component || !ended {
			continue
		}
		left := &source{clients: clients, pod: pod.Name}
		if err := left.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// podOf is unprivileged and fits OpenShift's restricted-v2. It has none of the labels of an
// environment, whose teardown would wait for it.
func podOf(claim Claim, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: claim.For + "-fetch-",
			Labels:       map[string]string{"app.kubernetes.io/part-of": "ml-dev-env", componentLabel: component},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(int64(lifetime / time.Second)),
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: container, Image: image, Command: []string{program, "files", "hold"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				Resources:    resources(),
				VolumeMounts: []corev1.VolumeMount{{Name: container, MountPath: mounted, ReadOnly: !claim.write}},
			}},
			Volumes: []corev1.Volume{{Name: container, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name, ReadOnly: !claim.write},
			}}},
		},
	}
}

// resources are told, because a quota refuses pods that do not tell theirs. A list of a million files takes
// about 1 GiB.
func resources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
	}
}

// beside puts the pod onto the node whose pod has the claim mounted: a claim that is
// ReadWriteOnce can be mounted nowhere else.
func beside(pod *corev1.Pod, claim string, others []corev1.Pod) {
	for _, other := range others {
		mounts := slices.ContainsFunc(other.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
		})
		if !mounts || other.Spec.NodeName == "" || other.Status.Phase != corev1.PodRunning {
			continue
		}
		pod.Spec.Tolerations = other.Spec.Tolerations
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{other.Spec.NodeName}},
			}}},
		}}}
		return
	}
}

func (s *source) wait(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	seen := "it is not scheduled yet"
	err := kube.Until(waiting, "pod "+s.pod, s.clients.Kube.CoreV1().Pods(s.clients.Namespace), metav1.ListOptions{FieldSelector: "metadata.name=" + s.pod},
		func(found []*corev1.Pod) (bool, error) {
			i := slices.IndexFunc(found, func(p *corev1.Pod) bool { return p.Name == s.pod })
			if i < 0 {
				return false, fmt.Errorf("waiting for pod %s/%s: it was deleted", s.clients.Namespace, s.pod)
			}
			if phase := found[i].Status.Phase; phase == corev1.PodFailed || phase == corev1.PodSucceeded {
				return false, fail.Becausef(fail.ContainerFailed, "waiting for pod %s/%s: it has ended: %s %s", s.clients.Namespace, s.pod, found[i].Status.Reason, found[i].Status.Message)
			}
			seen = hindrance(found[i])
			return found[i].Status.Phase == corev1.PodRunning, nil
		})
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return fail.Becausef(fail.PodsNotReady, "waiting for pod %s/%s, which mounts the claim: it does not run after %s: %s", s.clients.Namespace, s.pod, startTime, seen)
	}
	return err
}

// hindrance is why a pod does not run, as far as it says.
func hindrance(pod *corev1.Pod) string {
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

// remove deletes the pod, also after the end of ctx.
func (s *source) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	err := s.clients.Kube.CoreV1().Pods(s.clients.Namespace).Delete(ctx, s.pod, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return kube.Problem(fmt.Errorf("deleting pod %s/%s: %w", s.clients.Namespace, s.pod, err))
	}
	return nil
}

// run runs the agent's command in the pod.
func (s *source) run(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	var said bytes.Buffer
	err := kube.Exec{
		Namespace: s.clients.Namespace, Pod: s.pod, Container: container,
		Command: append([]string{program, "files"}, args...), Stdin: stdin, Stdout: stdout, Stderr: &said,
	}.Run(ctx, s.clients)
	if err != nil && said.Len() > 0 {
		return fmt.Errorf("%s: %w", strings.TrimSpace(said.String()), err)
	}
	return err
}

// list is what lies at the paths. Paths at which nothing lies are absent.
func (s *source) list(ctx context.Context, paths []string) (found agent.FileListing, err error) {
	var out bytes.Buffer
	if err := s.run(ctx, nil, &out, append([]string{"list", mounted}, paths...)...); err != nil {
		return found, fmt.Errorf("listing files: %w", err)
	}
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		return found, fmt.Errorf("listing files: reading the answer of pod %s: %w", s.pod, err)
	}
	return found, found.Manifest.Check()
}

// send calls each with the contents that are missing; each is verified as it is read.
func (s *source) send(ctx context.Context, m tree.Manifest, missing []tree.Digest, each func(tree.Digest, io.Reader) error) error {
	wanted, err := json.Marshal(agent.FileRequest{Manifest: m, Missing: missing})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := s.run(ctx, bytes.NewReader(wanted), writer, "send", mounted)
		writer.CloseWithError(err)
		sent <- err
	}()
	sizes := map[tree.Digest]int64{}
	for _, entry := range m.Entries {
		if entry.Kind == tree.File {
			sizes[entry.Content] = entry.Size
		}
	}
	err = tree.ReadContents(ctx, reader, sizes, each)
	reader.CloseWithError(context.Canceled)
	cancel()
	// The pod's own words are in what the reader says, unless the stream was at fault.
	if failed := <-sent; err != nil && failed != nil && !errors.Is(failed, context.Canceled) && !errors.Is(err, failed) {
		return fmt.Errorf("%w (%w)", err, failed)
	}
	return err
}
