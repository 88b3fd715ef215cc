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

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildstatus"
)

// injectLabel asks for the trusted certificates.
const injectLabel = "config.openshift.io/inject-trusted-cabundle"

func (c *controller) handleBuild(ctx context.Context, namespace, name string) error {
	build, err := c.Builds.Builds(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || ended(build) || build.DeletionTimestamp != nil {
		return err
	}
	pod, err := c.Kube.CoreV1().Pods(namespace).Get(ctx, buildapi.PodName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod = nil
	} else if err != nil {
		return err
	}
	if build.Status.Cancelled {
		return c.cancel(ctx, build, pod)
	}
	switch {
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
		err := c.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.move(ctx, build, pod, outcomeFor(buildv1.BuildPhaseCancelled, buildv1.StatusReasonCancelledBuild))
}

// start makes the pod of a new build whose turn it is.
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
			if err := c.stay(ctx, build, waiting.reason); err != nil {
				return err
			}
			// An ImageStream that appears is an event; nothing else is.
			if waiting.reason == buildv1.StatusReasonInvalidOutputReference {
				return nil
			}
		}
		return err
	}
	return c.createPod(ctx, build, resolved)
}

// waitingError is why a build stays New.
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
	base := ""
	if docker.From != nil {
		base = docker.From.Name
	}
	if docker.PullSecret == nil {
		secret, err := c.accountSecret(ctx, build, base)
		if err != nil {
			return waitingError{buildv1.StatusReasonCannotRetrieveServiceAccount, err}
		}
		docker.PullSecret = secret
	}
	for i := range build.Spec.Source.Images {
		source := &build.Spec.Source.Images[i]
		if source.From.Kind == "ImageStreamTag" {
			tag, err := c.Images.ImageStreamTags(namespaceOf(source.From, build)).Get(ctx, source.From.Name, metav1.GetOptions{})
			if err != nil {
				return waitingError{buildv1.StatusReasonInvalidImageReference, err}
			}
			source.From = corev1.ObjectReference{Kind: "DockerImage", Name: tag.Image.DockerImageReference}
		}
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
	return stream.Status.DockerImageRepository + ":" + tag, nil
}

// accountSecret is the secret of the build's service account for that image's
// registry, or else its first for any.
func (c *controller) accountSecret(ctx context.Context, build *buildv1.Build, image string) (*corev1.LocalObjectReference, error) {
	account, err := c.Kube.CoreV1().ServiceAccounts(build.Namespace).Get(ctx, build.Spec.ServiceAccount, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("error getting push/pull secrets for service account %s/%s: %w", build.Namespace, build.Spec.ServiceAccount, err)
	}
	host, _, _ := strings.Cut(image, "/")
	var found *corev1.LocalObjectReference
	for _, ref := range account.Secrets {
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
	if found == nil {
		return nil, fmt.Errorf("No docker secrets associated with build service account %s", build.Spec.ServiceAccount) //nolint:staticcheck // OpenShift's words
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
	pod, err := podFor(resolved, c.config, ns.Annotations[DiskSizeAnnotation])
	if err != nil {
		return c.stay(ctx, build, buildv1.StatusReasonCannotCreateBuildPodSpec)
	}
	created, err := c.Kube.CoreV1().Pods(build.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The next look at the build sees whose it is.
		return err
	}
	if err != nil {
		c.recorder.Eventf(build, corev1.EventTypeWarning, "FailedCreate", "Error creating build pod: %v", err)
		return errors.Join(fmt.Errorf("failed to create build pod: %w", err), c.stay(ctx, build, buildv1.StatusReasonCannotCreateBuildPod))
	}
	if err := c.ensureTrustedCA(ctx, build, created); err != nil {
		return err
	}
	return c.pending(ctx, build, resolved, created)
}

// adopt makes a build Pending whose pod was created by an attempt that then
// could not say so.
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

// resolveVariables reads what variables take from Secrets and ConfigMaps.
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

// ensureTrustedCA makes the ConfigMap that the pod waits for.
func (c *controller) ensureTrustedCA(ctx context.Context, build *buildv1.Build, pod *corev1.Pod) error {
	yes := true
	_, err := c.Kube.CoreV1().ConfigMaps(pod.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: trustedCAName(build), Labels: map[string]string{injectLabel: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes}},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// follow takes over into the build what its pod says.
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
		if err := c.ensureTrustedCA(ctx, build, pod); err != nil {
			return err
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

// recordImage puts what the build has pushed to an ImageStreamTag into it, as
// OpenShift's registry does.
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

// stay leaves the build New and says why.
func (c *controller) stay(ctx context.Context, build *buildv1.Build, reason buildv1.StatusReason) error {
	if build.Status.Reason == reason {
		return nil
	}
	return c.update(ctx, build, func(b *buildv1.Build) {
		b.Status.Reason, b.Status.Message = reason, buildstatus.Message(reason)
	})
}

// move gives the build another phase, and all that belongs to it.
func (c *controller) move(ctx context.Context, build *buildv1.Build, pod *corev1.Pod, to outcome) error {
	was := build.Status.Phase
	err := c.update(ctx, build, func(b *buildv1.Build) {
		setPhase(b, to)
		if pod != nil && pod.Status.StartTime != nil && b.Status.StartTimestamp == nil && to.phase != buildv1.BuildPhasePending {
			b.Status.StartTimestamp = pod.Status.StartTime
		}
		if ended(b) {
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

// complete fills in what an ended build has.
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
	if report.Revision != nil && build.Spec.Revision == nil {
		build.Spec.Revision = report.Revision
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

// requestCancel asks for the end of a build as a user would.
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
