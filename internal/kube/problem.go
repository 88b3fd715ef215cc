package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Place is whose pods a refusal is about, for commands that can be pasted.
type Place struct {
	Namespace      string
	ServiceAccount string
	// SCC is the one that the pods are pinned to, "" for none.
	SCC string
}

// Problem gives an error of the API server its reason, and the command that
// would mend it. What already has a reason, an ended context and what has no
// known cause come back as they are. The original stays in the chain, so
// apierrors.IsNotFound and the like still answer.
func Problem(err error) error { return ProblemAt(err, Place{}) }

// ProblemAt is Problem for a request about pods in a known place.
func ProblemAt(err error, at Place) error {
	var known *fail.Error
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if refused := Refusal(err, at); refused != nil {
		return refused
	}
	text := err.Error()
	switch {
	case missingNamespace.MatchString(text):
		name := missingNamespace.FindStringSubmatch(text)[1]
		return fail.Advise(fail.Because(fail.InvalidInput, err), "oc new-project %s", name)
	case apierrors.IsForbidden(err):
		return denied(err)
	case apierrors.IsUnauthorized(err):
		return fail.Advise(fail.Because(fail.PermissionDenied, err), "oc login (the token of this login is not valid any more)")
	case apierrors.IsInvalid(err) && immutable.MatchString(text):
		return fail.Because(fail.EnvironmentDiffers, err)
	case Transient(err):
		return fail.Advise(err, "oc get --raw /readyz (is the API server up, and reachable from here?)")
	}
	return err
}

var (
	missingNamespace = regexp.MustCompile(`namespaces "([^"]+)" not found`)
	immutable        = regexp.MustCompile(`field is immutable|is immutable after creation|updates to statefulset spec for fields other than`)
	quota            = regexp.MustCompile(`(?:exceeded|failed) quota: ([^,:\s]+)`)
	limitRange       = regexp.MustCompile(`(?:maximum|minimum) \S+ usage per \S+ is|max limit to request ratio per`)
)

// Refusal is the admission's refusal of an object that err speaks of: by a quota
// or limit range (QuotaExceeded), or by a security context constraint or pod
// security level (SecurityRefused). It goes by the text alone, so it reads the
// events of a StatefulSet as well as answers of the API server. It is nil for
// anything else.
func Refusal(err error, at Place) error {
	text := err.Error()
	namespace := orWord(at.Namespace, "NAMESPACE")
	switch {
	case quota.MatchString(text):
		return fail.Advise(fail.Because(fail.QuotaExceeded, err),
			"oc describe quota %s -n %s", quota.FindStringSubmatch(text)[1], namespace)
	case limitRange.MatchString(text):
		return fail.Advise(fail.Because(fail.QuotaExceeded, err), "oc describe limitrange -n %s", namespace)
	case strings.Contains(text, "unable to validate against any security context constraint"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc adm policy add-scc-to-user %s -z %s -n %s", orWord(at.SCC, NeededSCC(text)), orWord(at.ServiceAccount, "SERVICE-ACCOUNT"), namespace)
	case strings.Contains(text, "failed to retrieve the required SCC"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc get scc (then correct security.scc in the cluster file, or have that one made)")
	case strings.Contains(text, "violates PodSecurity"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc label namespace %s pod-security.kubernetes.io/enforce=%s --overwrite", namespace, neededLevel(text))
	}
	return nil
}

// forIPCLock are constraints that are made for RDMA and allow IPC_LOCK and root, nothing
// else of note: the clusters' own, and that of mlenv admin.
func forIPCLock() []string { return []string{"nccl-scc", "mlenv-rdma"} }

// addedCapability is a capability that a constraint refuses.
var addedCapability = regexp.MustCompile(`Invalid value: "([A-Z_]+)": capability may not be added`)

// NeededSCC is the least constraint that would admit a pod refused with this text: of
// those that the text says the cluster has and the pod may not use, one for RDMA where
// IPC_LOCK is all that is refused, else one of OpenShift's own.
func NeededSCC(text string) string {
	if onlyIPCLock(text) {
		for _, name := range forIPCLock() {
			if regexp.MustCompile(`provider "?` + name + `"?: Forbidden: not usable`).MatchString(text) {
				return name
			}
		}
	}
	for _, sign := range []string{
		"capability may not be added", "Privileged containers are not allowed", "Host network is not allowed",
		"Host PID is not allowed", "Host IPC is not allowed", "hostPath volumes are not allowed",
	} {
		if strings.Contains(text, sign) {
			return "privileged"
		}
	}
	return "anyuid"
}

// onlyIPCLock is true where nothing needs more than a constraint for RDMA.
func onlyIPCLock(text string) bool {
	if strings.Contains(text, "Privileged containers are not allowed") || strings.Contains(text, "Host ") || strings.Contains(text, "hostPath volumes") {
		return false
	}
	added := addedCapability.FindAllStringSubmatch(text, -1)
	return len(added) > 0 && !slices.ContainsFunc(added, func(m []string) bool { return m[1] != "IPC_LOCK" })
}

// neededLevel is the least pod security level that would admit a pod refused
// with this text.
func neededLevel(text string) string {
	if strings.Contains(text, `violates PodSecurity "baseline`) {
		return "privileged"
	}
	for _, sign := range []string{
		"privileged (", "non-default capabilities", "host namespaces", "hostPath volumes",
		// The restricted level speaks of any added capability so; IPC_LOCK is not in baseline's list.
		"must not include \"IPC_LOCK\"",
	} {
		if strings.Contains(text, sign) {
			return "privileged"
		}
	}
	return "baseline"
}

func orWord(value, word string) string {
	if value == "" {
		return word
	}
	return value
}

// Transient is true where the same request may succeed later: the API server
// is starting, overloaded or not reachable, or a watch is too old.
func Transient(err error) bool {
	var network net.Error
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) ||
		apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// identityLost is true where the server took us for nobody, though we show who
// we are: an aggregated API server that has just started does so, as long as it
// does not know by which certificate the API server speaks for others.
func identityLost(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `User "system:anonymous"`)
}
