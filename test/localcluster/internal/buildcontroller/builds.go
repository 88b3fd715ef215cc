// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

func (c *controller) handleBuild(ctx context.Context, namespace, name string) error {
	build, err := c.Builds.Builds(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || settled(build) || build.DeletionTimestamp != nil {
		return err
	}
	pod, err := c.Kube.CoreV1().Pods(namespace).Get(ctx, buildapi.PodName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod = nil
	} else if err != nil {
		return err
	}
	if build.Status.Cancelled && !ended(build) {
		return c.cancel(ctx, build, pod)
	}
	switch {
	case ended(build):
		return c.settle(ctx, build, pod)
	case build.Status.Phase != buildv1.BuildPhaseNew:
		return c.follow(ctx, build, pod)
	case pod == nil:
		return c.start(ctx, build)
	case ownedBy(pod, build):
		return c.adopt(ctx, build, pod)
	}
	return c.move(ctx, build, nil, outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonBuildPodExists))
}

func (c *controller) cancel(ctx context.Context, build *buildv1.Build, pod *corev1.Pod) error {
	if pod != nil && ownedBy(pod, build) {
		err := c.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.move(ctx, build, pod, outcomeFor(buildv1.BuildPhaseCancelled, buildv1.StatusReasonCancelledBuild))
}

// start creates the pod of a new build once the run policy allows it.
func (c *controller) start(ctx context.Context, build *buildv1.Build) error {
	others, err := c.buildsOf(ctx, build.Namespace, configOf(build))
	if err != nil {
		return err
	}
	run, superseded := turn(build, others)
	for _, name := range superseded {
		if err := c.requestCancel(ctx, build.Namespace, name); err != nil {
			return err
		}
	}
	if !run {
		return nil
	}
	resolved := build.DeepCopy()
	if err := c.resolve(ctx, resolved); err != nil {
		var waiting waitingError
		if errors.As(err, &waiting) {
			o := outcomeFor(buildv1.BuildPhaseNew, waiting.reason)
			if waiting.reason == buildv1.StatusReasonInvalidOutputReference {
				// Only a build with a folder fails, because its sender waits.
				o.phase = buildv1.BuildPhaseFailed
				return c.move(ctx, build, nil, o)
			}
			if err := c.stay(ctx, build, o); err != nil {
				return err
			}
		}
		return err
	}
	missing, err := c.missingResources(ctx, resolved)
	if err != nil {
		return err
	}
	if missing != "" {
		return c.move(ctx, build, nil, outcome{phase: buildv1.BuildPhaseFailed, reason: buildv1.StatusReasonGenericBuildFailed,
			message: "These resources do not exist:" + missing})
	}
	return c.createPod(ctx, build, resolved)
}

// missingResources lists the ConfigMaps and Secrets of the build's volumes that do not exist.
func (c *controller) missingResources(ctx context.Context, build *buildv1.Build) (missing string, err error) {
	var configs, secrets []string
	for _, v := range build.Spec.Strategy.DockerStrategy.Volumes {
		var list *[]string
		var name string
		switch {
		case v.Source.ConfigMap != nil:
			list, name = &configs, v.Source.ConfigMap.Name
			_, err = c.Kube.CoreV1().ConfigMaps(build.Namespace).Get(ctx, name, metav1.GetOptions{})
		case v.Source.Secret != nil:
			list, name = &secrets, v.Source.Secret.SecretName
			_, err = c.Kube.CoreV1().Secrets(build.Namespace).Get(ctx, name, metav1.GetOptions{})
		default:
			continue
		}
		switch {
		case apierrors.IsNotFound(err):
			*list = append(*list, name)
		case err != nil:
			return "", err
		}
	}
	if len(configs) > 0 {
		missing = " ConfigMaps [" + strings.Join(configs, ", ") + "]"
	}
	if len(secrets) > 0 {
		missing += " Secrets [" + strings.Join(secrets, ", ") + "]"
	}
	return missing, nil
}

// waitingError is the reason why a build stays New.
type waitingError struct {
	reason buildv1.StatusReason
	err    error
}

func (w waitingError) Error() string { return w.err.Error() }
func (w waitingError) Unwrap() error { return w.err }

// resolve turns the build's references into images and finds its secrets.
func (c *controller) resolve(ctx context.Context, build *buildv1.Build) error {
	if to := build.Spec.Output.To; to != nil && to.Name != "" {
		reference, err := c.resolveOutput(ctx, build.Namespace, *to)
		if err != nil {
			return waitingError{buildv1.StatusReasonInvalidOutputReference, err}
		}
		build.Spec.Output.To = &corev1.ObjectReference{Kind: "DockerImage", Name: reference}
		build.Status.OutputDockerImageReference = reference
		if build.Spec.Output.PushSecret == nil {
			if build.Spec.Output.PushSecret, err = c.accountSecret(ctx, build, reference); err != nil {
				return waitingError{buildv1.StatusReasonCannotRetrieveServiceAccount, err}
			}
		}
	}
	docker := build.Spec.Strategy.DockerStrategy
	if docker.PullSecret == nil {
		secret, err := c.accountSecret(ctx, build, "")
		if err != nil {
			return waitingError{buildv1.StatusReasonCannotRetrieveServiceAccount, err}
		}
		docker.PullSecret = secret
	}
	return nil
}

func namespaceOf(ref corev1.ObjectReference, build *buildv1.Build) string {
	if ref.Namespace != "" {
		return ref.Namespace
	}
	return build.Namespace
}

func (c *controller) resolveOutput(ctx context.Context, namespace string, to corev1.ObjectReference) (string, error) {
	if to.Kind == "DockerImage" {
		return to.Name, nil
	}
	if to.Namespace != "" {
		namespace = to.Namespace
	}
	name, tag, ok := strings.Cut(to.Name, ":")
	if !ok {
		tag = "latest"
	}
	stream, err := c.Images.ImageStreams(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if stream.Status.DockerImageRepository == "" {
		return "", errors.New("the integrated registry is not configured")
	}
	return stream.Status.DockerImageRepository + ":" + tag, nil
}

// accountSecret returns the secret of the build's service account for the image's registry. Without such a secret it
// returns the account's first secret for any registry, or nil.
func (c *controller) accountSecret(ctx context.Context, build *buildv1.Build, image string) (*corev1.LocalObjectReference, error) {
	account, err := c.Kube.CoreV1().ServiceAccounts(build.Namespace).Get(ctx, build.Spec.ServiceAccount, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("error getting push/pull secrets for service account %s/%s: %w", build.Namespace, build.Spec.ServiceAccount, err)
	}
	host, _, _ := strings.Cut(image, "/")
	var found *corev1.LocalObjectReference
	for _, ref := range account.ImagePullSecrets {
		secret, err := c.Kube.CoreV1().Secrets(build.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		content := secret.Data[corev1.DockerConfigKey]
		if secret.Type == corev1.SecretTypeDockerConfigJson {
			content = secret.Data[corev1.DockerConfigJsonKey]
		}
		if len(content) == 0 {
			continue
		}
		if strings.Contains(string(content), `"`+host+`"`) {
			return &corev1.LocalObjectReference{Name: secret.Name}, nil
		}
		if found == nil {
			found = &corev1.LocalObjectReference{Name: secret.Name}
		}
	}
	return found, nil
}

func (c *controller) createPod(ctx context.Context, build, resolved *buildv1.Build) error {
	ns, err := c.Kube.CoreV1().Namespaces().Get(ctx, build.Namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	resolved.Status.Reason, resolved.Status.Message = "", ""
	resolved.ManagedFields = nil
	docker := resolved.Spec.Strategy.DockerStrategy
	for _, list := range [][]corev1.EnvVar{docker.Env, docker.BuildArgs} {
		if err := c.resolveVariables(ctx, build.Namespace, list); err != nil {
			o := outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonUnresolvableEnvironmentVariable)
			o.message = strings.TrimSuffix(o.message, ".") + "., " + err.Error()
			return c.move(ctx, build, nil, o)
		}
	}
	expand(docker.Env)
	pod, err := podFor(resolved, c.config, ns.Annotations[DiskSizeAnnotation])
	if err != nil {
		return c.stay(ctx, build, outcome{reason: buildv1.StatusReasonCannotCreateBuildPodSpec, message: "Failed to create pod spec: " +
			err.Error()})
	}
	created, err := c.Kube.CoreV1().Pods(build.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The next attempt checks the owner of this pod.
		return err
	}
	if err != nil {
		c.recorder.Eventf(build, corev1.EventTypeWarning, "FailedCreate", "Error creating build pod: %v", err)
		return errors.Join(fmt.Errorf("failed to create build pod: %w", err),
			c.stay(ctx, build, outcome{reason: buildv1.StatusReasonCannotCreateBuildPod, message: "Failed creating build pod: " + err.Error()}))
	}
	return c.pending(ctx, build, resolved, created)
}

// adopt sets a build to Pending if its pod already exists, because an earlier attempt could not update the build.
func (c *controller) adopt(ctx context.Context, build *buildv1.Build, pod *corev1.Pod) error {
	resolved := build.DeepCopy()
	if err := c.resolve(ctx, resolved); err != nil {
		return err
	}
	return c.pending(ctx, build, resolved, pod)
}

func (c *controller) pending(ctx context.Context, build, resolved *buildv1.Build, pod *corev1.Pod) error {
	return c.update(ctx, build, func(b *buildv1.Build) {
		setPhase(b, outcomeFor(buildv1.BuildPhasePending, ""))
		b.Spec.Output.PushSecret = resolved.Spec.Output.PushSecret
		b.Status.OutputDockerImageReference = resolved.Status.OutputDockerImageReference
		if b.Annotations == nil {
			b.Annotations = map[string]string{}
		}
		b.Annotations[buildv1.BuildPodNameAnnotation] = pod.Name
	})
}

// expand resolves $(NAME) in variables by those before them, and $$ to $.
func expand(variables []corev1.EnvVar) {
	known := map[string]string{}
	for i := range variables {
		v := &variables[i]
		v.Value = expansion.Expand(v.Value, expansion.MappingFuncFor(known))
		known[v.Name] = v.Value
	}
}

// resolveVariables reads the values that variables take from Secrets and ConfigMaps.
func (c *controller) resolveVariables(ctx context.Context, namespace string, variables []corev1.EnvVar) error {
	for i := range variables {
		from := variables[i].ValueFrom
		if from == nil {
			continue
		}
		switch {
		case from.SecretKeyRef != nil:
			secret, err := c.Kube.CoreV1().Secrets(namespace).Get(ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			value, ok := secret.Data[from.SecretKeyRef.Key]
			if !ok {
				return fmt.Errorf("key %s not found in secret %s", from.SecretKeyRef.Key, secret.Name)
			}
			variables[i].Value = string(value)
		case from.ConfigMapKeyRef != nil:
			cm, err := c.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, from.ConfigMapKeyRef.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			value, ok := cm.Data[from.ConfigMapKeyRef.Key]
			if !ok {
				return fmt.Errorf("key %s not found in configmap %s", from.ConfigMapKeyRef.Key, cm.Name)
			}
			variables[i].Value = value
		default:
			return fmt.Errorf("variable %s: only secretKeyRef and configMapKeyRef are resolved", variables[i].Name)
		}
		variables[i].ValueFrom = nil
	}
	return nil
}

// follow copies the state of the build's pod into the build.
func (c *controller) follow(ctx context.Context, build *buildv1.Build, pod *corev1.Pod) error {
	if pod == nil {
		return c.move(ctx, build, nil, outcomeFor(buildv1.BuildPhaseError, buildv1.StatusReasonBuildPodDeleted))
	}
	seen := observe(pod)
	switch seen.phase {
	case buildv1.BuildPhasePending:
		if build.Status.Phase == buildv1.BuildPhaseRunning {
			return nil
		}
		missing, err := c.pushSecretMissing(ctx, build)
		if err != nil {
			return err
		}
		if missing {
			seen = outcomeFor(buildv1.BuildPhasePending, buildv1.StatusReasonMissingPushSecret)
		} else if build.Status.Reason == buildv1.StatusReasonMissingPushSecret {
			return nil
		}
	case buildv1.BuildPhaseComplete:
		if err := c.recordImage(ctx, build, seen.report.ImageDigest); err != nil {
			return err
		}
	}
	if seen.phase == build.Status.Phase && seen.reason == build.Status.Reason {
		return nil
	}
	return c.move(ctx, build, pod, seen)
}

func (c *controller) pushSecretMissing(ctx context.Context, build *buildv1.Build) (bool, error) {
	secret := build.Spec.Output.PushSecret
	if secret == nil {
		return false, nil
	}
	_, err := c.Kube.CoreV1().Secrets(build.Namespace).Get(ctx, secret.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// recordImage records the image that the build has pushed to an ImageStreamTag in the stream, as OpenShift's registry
// does.
func (c *controller) recordImage(ctx context.Context, build *buildv1.Build, digest string) error {
	to := build.Spec.Output.To
	if to == nil || to.Kind == "DockerImage" || digest == "" {
		return nil
	}
	name, tag, ok := strings.Cut(to.Name, ":")
	if !ok {
		tag = "latest"
	}
	namespace := namespaceOf(*to, build)
	image, err := fetchImage(ctx, c.config.Registry+"/"+namespace+"/"+name+"@"+digest)
	if err != nil {
		return fmt.Errorf("reading the image that build %s/%s pushed: %w", build.Namespace, build.Name, err)
	}
	stream, err := c.Images.ImageStreams(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.tagImage(ctx, namespace, name, tag, image, stream.Generation)
}

// stay leaves the build New and sets the reason.
func (c *controller) stay(ctx context.Context, build *buildv1.Build, why outcome) error {
	if build.Status.Reason == why.reason && build.Status.Message == why.message {
		return nil
	}
	return c.update(ctx, build, func(b *buildv1.Build) {
		b.Status.Reason, b.Status.Message = why.reason, why.message
	})
}

// settled reports whether the build has ended and no step follows. If the builder has reported the failure of a build,
// a second step settles the build.
func settled(build *buildv1.Build) bool {
	return ended(build) && build.Status.CompletionTimestamp != nil
}

// settle does the second step, in which OpenShift reads the pod of a failed build.
func (c *controller) settle(ctx context.Context, build *buildv1.Build, pod *corev1.Pod) error {
	return c.update(ctx, build, func(b *buildv1.Build) {
		var report buildstatus.Report
		if pod != nil {
			report = reportOf(pod)
			if killedForMemory(pod) {
				setPhase(b, outcomeFor(buildv1.BuildPhaseFailed, buildv1.StatusReasonOutOfMemoryKilled))
			}
		}
		complete(b, report)
	})
}

// move sets the phase of the build, with the status fields and the event of that phase.
func (c *controller) move(ctx context.Context, build *buildv1.Build, pod *corev1.Pod, to outcome) error {
	was := build.Status.Phase
	err := c.update(ctx, build, func(b *buildv1.Build) {
		setPhase(b, to)
		if pod != nil && pod.Status.StartTime != nil && b.Status.StartTimestamp == nil && to.phase != buildv1.BuildPhasePending {
			b.Status.StartTimestamp = pod.Status.StartTime
		}
		if ended(b) && to.report.Reason == "" {
			complete(b, to.report)
		}
	})
	if err != nil || was == to.phase {
		return err
	}
	switch to.phase {
	case buildv1.BuildPhaseRunning:
		c.event(build, "BuildStarted", "is now running")
	case buildv1.BuildPhaseComplete:
		c.event(build, "BuildCompleted", "completed successfully")
	case buildv1.BuildPhaseCancelled:
		c.event(build, "BuildCancelled", "has been cancelled")
	case buildv1.BuildPhaseFailed, buildv1.BuildPhaseError:
		c.event(build, "BuildFailed", "failed")
	}
	return nil
}

func (c *controller) event(build *buildv1.Build, reason, what string) {
	c.recorder.Eventf(build, corev1.EventTypeNormal, reason, "Build %s/%s %s", build.Namespace, build.Name, what)
}

// complete sets the status fields of an ended build.
func complete(build *buildv1.Build, report buildstatus.Report) {
	now := metav1.Now()
	if build.Status.StartTimestamp == nil {
		build.Status.StartTimestamp = &now
	}
	build.Status.CompletionTimestamp = &now
	build.Status.Duration = now.Sub(build.Status.StartTimestamp.Time)
	build.Status.Stages = report.Stages
	if build.Status.Phase == buildv1.BuildPhaseFailed {
		build.Status.LogSnippet = buildstatus.Snippet(report.LogTail)
	}
	if report.ImageDigest != "" && build.Status.Phase == buildv1.BuildPhaseComplete {
		build.Status.Output.To = &buildv1.BuildStatusOutputTo{ImageDigest: report.ImageDigest}
	}
}

// setPhase sets the phase with its reason and its condition.
func setPhase(build *buildv1.Build, to outcome) {
	build.Status.Phase, build.Status.Reason, build.Status.Message = to.phase, to.reason, to.message
	now := metav1.Now()
	kind := buildv1.BuildConditionType(to.phase)
	found := false
	for i := range build.Status.Conditions {
		condition := &build.Status.Conditions[i]
		status := corev1.ConditionFalse
		if condition.Type == kind {
			found, status = true, corev1.ConditionTrue
			condition.Reason, condition.Message = string(to.reason), to.message
		}
		if condition.Status != status {
			condition.Status, condition.LastTransitionTime = status, now
		}
		condition.LastUpdateTime = now
	}
	if !found {
		build.Status.Conditions = append(build.Status.Conditions, buildv1.BuildCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: string(to.reason), Message: to.message,
			LastTransitionTime: now, LastUpdateTime: now,
		})
	}
}

func (c *controller) update(ctx context.Context, build *buildv1.Build, change func(*buildv1.Build)) error {
	updated := build.DeepCopy()
	change(updated)
	_, err := c.Builds.Builds(build.Namespace).Update(ctx, updated, metav1.UpdateOptions{})
	return err
}

// requestCancel cancels a build as a user would.
func (c *controller) requestCancel(ctx context.Context, namespace, name string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		build, err := c.Builds.Builds(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || build.Status.Cancelled {
			return err
		}
		return c.update(ctx, build, func(b *buildv1.Build) { b.Status.Cancelled = true })
	})
}
