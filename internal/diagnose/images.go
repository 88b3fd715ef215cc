// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

var (
	backedOff  = regexp.MustCompile(`(?s)^Back-off pulling image "[^"]*"(?:: \w+: )?`)
	pullFailed = regexp.MustCompile(`(?s)^Failed to pull image "[^"]*": `)
	rpcPrefix  = regexp.MustCompile(`^rpc error: code = \w+ desc = `)
)

// explainImage returns why the container's image is not on the node.
func (e *explainer) explainImage(pod *corev1.Pod, c container) fail.Finding {
	waiting := c.State.Waiting
	text := e.pullError(pod, c, waiting.Message)
	f := fail.Finding{Reason: fail.ImageUnavailable, Object: "pod " + pod.Name, Since: e.firstPullError(pod, c.imageName())}
	registry := registryOf(c.imageName())
	node := pod.Spec.NodeName
	lower := withoutImage(text, c)
	what := ""
	switch {
	case waiting.Reason == "InvalidImageName":
		what, f.Final = "is not the name of an image", true
		f.Next = "correct the name of the image"
	case waiting.Reason == "ErrImageNeverPull":
		what, f.Final = "is not on node "+node+" and may not be pulled", true
		f.Next = "correct the name of the image"
	case waiting.Reason == "SignatureValidationFailed", containsAny(lower, "signature was required", "source image rejected"):
		what, f.Final = "is refused by the cluster's signature policy", true
		f.Next = "oc get image.config.openshift.io/cluster -o yaml"
	case containsAny(lower, "server gave http response to https client"):
		what, f.Final = "is in a registry without TLS, which the nodes do not allow", true
		f.Next = fmt.Sprintf(
			`oc patch image.config.openshift.io/cluster --type merge -p '{"spec":{"registrySources":{"insecureRegistries":["%s"]}}}'`, registry)
	case containsAny(lower, "x509:", "certificate"):
		what, f.Final = "is in a registry whose certificate the nodes do not trust", true
		f.Next = fmt.Sprintf("oc create configmap registry-cas -n openshift-config --from-file=%s=ca.crt\n"+
			`oc patch image.config.openshift.io/cluster --type merge -p '{"spec":{"additionalTrustedCA":{"name":"registry-cas"}}}'`,
			strings.Replace(registry, ":", "..", 1))
	case containsAny(lower, "no match for platform", "no image found in manifest list", "no matching manifest", "architecture mismatch"):
		what, f.Final = "is not built for the processor of node "+node+e.architecture(node), true
		f.Next = fmt.Sprintf("oc image info %s --show-multiarch", c.imageName())
	case containsAny(lower, "toomanyrequests", "too many requests", "rate limit"):
		what = "is in a registry that limits how often it may be pulled"
		f.Next = e.pullSecret(registry)
	case refused(lower) && slices.ContainsFunc(WithoutPullSecrets(e.Snapshot), func(p corev1.Pod) bool { return p.UID == pod.UID }):
		what = "cannot be pulled, because the pod was created before service account " + e.Account.Name + " got its pull secrets (" +
			pullSecretsOf(e.Account) + ")"
		f.Next = fmt.Sprintf("oc delete pod %s -n %s (the next pod has them)", pod.Name, pod.Namespace)
		if named := e.template().ImagePullSecrets; len(named) > 0 && lacksSecrets(named, e.Account) {
			f.Next = "start the environment again in the same way: that adds them to its StatefulSet and replaces the pod"
		}
	case refused(lower) && e.awaitsSecrets:
		what = "cannot be pulled yet, because service account " + e.Account.Name + " has not got its pull secrets"
		f.Next = fmt.Sprintf("wait for them: oc get serviceaccount %s -n %s -o yaml", e.Account.Name, pod.Namespace)
	case refused(lower):
		what = "may not be pulled without other credentials"
		if containsAny(lower, "may require", "does not exist") {
			what = "does not exist or may not be pulled without other credentials"
		}
		f.Final = true
		f.Next = e.pullSecret(registry)
		if from, _, ok := kube.InternalImage(c.imageName()); ok {
			// OpenShift creates the account's credentials a moment after the account, but no right in another namespace.
			f.Final = from != e.namespace()
			f.Next = kube.AllowPull(e.namespace(), from)
		}
	case containsAny(lower, "no such host", "server misbehaving"):
		what = "is in a registry whose name node " + node + " cannot resolve"
		f.Next = fmt.Sprintf("oc debug node/%s -- chroot /host getent hosts %s", node, strings.Split(registry, ":")[0])
	case containsAny(lower, "manifest unknown", "not found", "name unknown"):
		what, f.Final = "does not exist", true
		f.Next = "oc image info " + c.imageName()
		if from, _, ok := kube.InternalImage(c.imageName()); ok {
			f.Next = "oc get imagestreamtags -n " + from
		}
	case containsAny(lower, "no space left on device"):
		what = "does not fit on the disk of node " + node
		f.Next = "oc describe node " + node
	case containsAny(lower, "connection refused", "i/o timeout", "deadline exceeded", "no route to host", "connection reset",
		"tls handshake timeout", "unexpected eof", "registry is unavailable", "503 service", "502 bad gateway", "500 internal"):
		what = "is in a registry that does not answer node " + node
		f.Next = fmt.Sprintf("oc debug node/%s -- chroot /host curl -sSI https://%s/v2/", node, registry)
	default:
		what = "cannot be pulled"
		f.Next = fmt.Sprintf("oc describe pod %s -n %s", pod.Name, pod.Namespace)
	}
	f.Seen = fmt.Sprintf("image %s of %s %s: %s", c.imageName(), c.displayName(), what, oneLine(text))
	if missing, ok := latest(e.podEvents(pod), "FailedToRetrieveImagePullSecret"); ok {
		f.Seen += "; " + oneLine(missing.text)
	}
	return f
}

// withoutImage returns the text in lower case without the image's own name, which may contain any sign.
func withoutImage(text string, c container) string {
	return strings.ReplaceAll(strings.ToLower(text), strings.ToLower(c.imageName()), "")
}

// refused reports whether a registry's error asks for other credentials.
func refused(text string) bool {
	return containsAny(text, "unauthorized", "authentication required", "denied", "403 forbidden", "no basic auth credentials",
		"invalid username/password")
}

// pullError returns the last error of the registry or the runtime. While the kubelet backs off, older releases have it in the
// events only.
func (e *explainer) pullError(pod *corev1.Pod, c container, message string) string {
	text := backedOff.ReplaceAllString(message, "")
	if text == "" {
		for _, ev := range slices.Backward(e.podEvents(pod)) {
			if ev.reason == "Failed" && strings.Contains(ev.text, c.imageName()) && pullFailed.MatchString(ev.text) {
				text = pullFailed.ReplaceAllString(ev.text, "")
				break
			}
		}
	}
	return rpcPrefix.ReplaceAllString(cmp.Or(text, c.State.Waiting.Reason), "")
}

func (e *explainer) firstPullError(pod *corev1.Pod, image string) time.Time {
	for _, ev := range e.podEvents(pod) {
		if ev.reason == "Failed" && strings.Contains(ev.text, image) {
			return ev.first
		}
	}
	return time.Time{}
}

// pullSecret returns the command that creates credentials for the registry, and the key that names them.
func (e *explainer) pullSecret(registry string) string {
	secret := "ml-dev-pull"
	if named := e.template().ImagePullSecrets; len(named) > 0 {
		secret = named[0].Name
	}
	if registry == name.DefaultRegistry {
		registry = "https://index.docker.io/v1/"
	}
	// The Secret may exist: oc create alone would fail.
	return fmt.Sprintf("oc create secret docker-registry %s --docker-server=%s --docker-username=USER --docker-password=TOKEN -n %s "+
		"--dry-run=client -o yaml | oc apply -f -\n"+
		"and image.pull_secret: %s in the cluster file", secret, registry, e.namespace(), secret)
}

// architecture returns a node's architecture such as " (arm64)", "" if the node may not be read.
func (e *explainer) architecture(node string) string {
	if n := findNamed(e.Nodes, node); n != nil && n.Status.NodeInfo.Architecture != "" {
		return " (" + n.Status.NodeInfo.Architecture + ")"
	}
	return ""
}

// registryOf returns the registry of an image's name.
func registryOf(image string) string {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "REGISTRY"
	}
	return ref.Context().RegistryStr()
}
