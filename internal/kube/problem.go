// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// PodOwner is the owner of the refused pods, for commands that users paste.
type PodOwner struct {
	Namespace      string
	ServiceAccount string
	// SCC is the constraint that the pods are pinned to, or "".
	SCC string
}

// Problem adds the reason, and the command that fixes it, to an error of the API server. It returns an error with a reason,
// of an ended context, or without a known cause unchanged. The original stays in the chain for apierrors.IsNotFound and others.
func Problem(err error) error {
	var known *fail.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return shorter(err)
	}
	if refused := Refusal(err, PodOwner{}); refused != nil {
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
		if status := apierrors.APIStatus(nil); !errors.As(err, &status) { // it did not answer
			err = fail.Because(fail.APIServerUnreachable, shorter(err))
		}
		return fail.Advise(err, "oc get --raw /readyz (is the API server up, and reachable from here?)")
	}
	return err
}

// Deleted is Problem for the answer to a deletion. A missing object is not an error.
func Deleted(object string, err error) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return Problem(fmt.Errorf("deleting %s: %w", object, err))
}

type shortError struct {
	error
	text string
}

func (e shortError) Error() string { return e.text }

func (e shortError) Unwrap() error { return e.error }

// shorter replaces a failed request's address, and the layers of the network below it, by the API server and the cause.
func shorter(err error) error {
	var (
		request *url.Error
		dial    *net.OpError
		errno   syscall.Errno
	)
	if !errors.As(err, &request) {
		return err
	}
	server, parseErr := url.Parse(request.URL)
	if parseErr != nil {
		return err
	}
	cause := request.Err
	if errors.As(cause, &dial) {
		cause = dial.Err
	}
	if errors.As(cause, &errno) {
		cause = errno
	}
	return shortError{err, strings.Replace(err.Error(), request.Error(), fmt.Sprintf("no answer from API server %s://%s: %v", server.Scheme,
		server.Host, cause), 1)}
}

var (
	missingNamespace = regexp.MustCompile(`namespaces "([^"]+)" not found`)
	immutable        = regexp.MustCompile(`field is immutable|is immutable after creation|updates to statefulset spec for fields other than`)
	quota            = regexp.MustCompile(`(?:exceeded|failed) quota: ([^,:\s]+)`)
	limitRange       = regexp.MustCompile(`(?:maximum|minimum) \S+ usage per \S+ is|max limit to request ratio per`)
)

// Refusal adds reason and command to a refusal by admission: by a quota or limit range (QuotaExceeded), or by a security
// context constraint or pod security level (SecurityRefused). It reads the text alone, which events of a StatefulSet and
// answers of the API server share. It is nil for any other error.
func Refusal(err error, owner PodOwner) error {
	text := err.Error()
	namespace := cmp.Or(owner.Namespace, "NAMESPACE")
	switch {
	case quota.MatchString(text):
		return fail.Advise(fail.Because(fail.QuotaExceeded, err),
			"oc describe quota %s -n %s", quota.FindStringSubmatch(text)[1], namespace)
	case limitRange.MatchString(text):
		return fail.Advise(fail.Because(fail.QuotaExceeded, err), "oc describe limitrange -n %s", namespace)
	case strings.Contains(text, "unable to validate against any security context constraint"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc adm policy add-scc-to-user %s -z %s -n %s", cmp.Or(owner.SCC, NeededSCC(text)), cmp.Or(owner.ServiceAccount, "SERVICE-ACCOUNT"),
			namespace)
	case strings.Contains(text, "failed to retrieve the required SCC"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc get scc (then correct security.scc in the cluster file, or let an administrator create that one)")
	case strings.Contains(text, "violates PodSecurity"):
		return fail.Advise(fail.Because(fail.SecurityRefused, err),
			"oc label namespace %s pod-security.kubernetes.io/enforce=%s --overwrite", namespace, neededLevel(text))
	}
	return nil
}

var addedCapability = regexp.MustCompile(`Invalid value: "([A-Z_]+)": capability may not be added`)

// NeededSCC returns the least constraint that would admit a pod refused with this text: a constraint for RDMA that the text
// names, if it refuses only IPC_LOCK, otherwise one of OpenShift's own.
func NeededSCC(text string) string {
	if onlyIPCLock(text) {
		// They allow little more than IPC_LOCK and root: a cluster's own, and mlenv admin's.
		for _, name := range []string{"nccl-scc", "mlenv-rdma"} {
			if regexp.MustCompile(`provider "?` + name + `"?: Forbidden: not usable`).MatchString(text) {
				return name
			}
		}
	}
	if hasAny(text, "capability may not be added", "Privileged containers are not allowed", "Host network is not allowed",
		"Host PID is not allowed", "Host IPC is not allowed", "hostPath volumes are not allowed") {
		return "privileged"
	}
	return "anyuid"
}

func onlyIPCLock(text string) bool {
	if hasAny(text, "Privileged containers are not allowed", "Host ", "hostPath volumes") {
		return false
	}
	added := addedCapability.FindAllStringSubmatch(text, -1)
	return len(added) > 0 && !slices.ContainsFunc(added, func(m []string) bool { return m[1] != "IPC_LOCK" })
}

// neededLevel returns the least pod security level that would admit a pod refused with this text.
func neededLevel(text string) string {
	// The restricted level speaks of any added capability as of IPC_LOCK, which is not in baseline's list.
	if hasAny(text, `violates PodSecurity "baseline`, "privileged (", "non-default capabilities", "host namespaces", "hostPath volumes",
		`must not include "IPC_LOCK"`) {
		return "privileged"
	}
	return "baseline"
}

func hasAny(text string, signs ...string) bool {
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(text, sign) })
}

// brokenStream matches HTTP/2's error for a request that a balancer, or a server that ends, has dropped.
var brokenStream = regexp.MustCompile(`stream error: stream ID \d+; (?:INTERNAL_ERROR|REFUSED_STREAM|CANCEL)`)

// Transient reports whether the same request may succeed later: the API server is starting, overloaded or unreachable, or a
// watch is too old.
func Transient(err error) bool {
	var network net.Error
	return err != nil && (apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) ||
		apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || brokenStream.MatchString(err.Error()) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network))
}

// UnknownKind reports whether the API server does not know the kind of an object. If only the object or its namespace is missing, the
// details of the answer have its name.
func UnknownKind(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

// identityLost reports whether the server ignored our credentials. An aggregated API server does so just after its start,
// until it knows the certificate by which the API server forwards requests.
func identityLost(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `User "system:anonymous"`)
}
