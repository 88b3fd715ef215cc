// SPDX-License-Identifier: Apache-2.0

package env

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Fit is how the size of a claim fits the requested one.
type Fit string

const (
	// Fits is a claim of the requested size, or with a volume that is at least as large without being asked for more.
	Fits Fit = "fits"
	// Larger is a claim that was asked for more. It stays: no claim is ever made smaller.
	Larger Fit = "larger"
	// Smaller is a claim that has to be expanded.
	Smaller Fit = "smaller"
	// Unbound is a smaller claim without a volume. The API server expands it once it has one.
	Unbound Fit = "unbound"
	// Expanding is a claim that was asked for the size and does not have it yet.
	Expanding Fit = "expanding"
)

// FitOf compares a claim with the size that a request asks for.
func FitOf(claim *corev1.PersistentVolumeClaim, size resource.Quantity) Fit {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	switch {
	case asked.Cmp(size) > 0:
		return Larger
	case asked.Cmp(size) < 0 && has.Cmp(size) >= 0:
		return Fits
	case asked.Cmp(size) < 0 && claim.Status.Phase != corev1.ClaimBound:
		return Unbound
	case asked.Cmp(size) < 0:
		return Smaller
	case !has.IsZero() && has.Cmp(size) < 0:
		return Expanding
	}
	return Fits
}

// Growth is how far the expansion of a claim has got.
type Growth struct {
	// Done reports whether the claim has the size.
	Done bool
	// NeedsPod reports whether only the file system has to grow, which the kubelet does when a pod mounts the claim.
	NeedsPod bool
	// Failed is why the storage cannot expand it, "" if that is not known.
	Failed string
}

// GrowthOf reads the status of a claim that was asked for a size.
func GrowthOf(claim *corev1.PersistentVolumeClaim, size resource.Quantity) (g Growth) {
	has := claim.Status.Capacity[corev1.ResourceStorage]
	g.Done = has.Cmp(size) >= 0
	for _, c := range claim.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PersistentVolumeClaimFileSystemResizePending:
			g.NeedsPod = true
		case c.Type == corev1.PersistentVolumeClaimControllerResizeError, c.Type == corev1.PersistentVolumeClaimNodeResizeError:
			g.Failed = humanize.OneLine(cmp.Or(c.Message, string(c.Type)), 300)
		}
	}
	switch status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; status {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		g.NeedsPod = true
	case corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		g.Failed = cmp.Or(g.Failed, string(status))
	}
	return g
}

// Expand asks for a larger size of a claim, and never for a smaller one: not either if somebody else has expanded it meanwhile. As a
// dry run it only asks the API server whether it would, which then decides by the claim's class and by quotas, too.
func (e Environment) Expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity, dryRun bool) error {
	claims := e.clients.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace)
	options := metav1.PatchOptions{FieldManager: kube.FieldManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	seen := claim
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if seen == nil {
			if seen, err = claims.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		asked := seen.Spec.Resources.Requests[corev1.ResourceStorage]
		if asked.Cmp(size) >= 0 {
			return nil
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": seen.ResourceVersion},
			"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": size.String()}}},
		})
		if err != nil {
			return err
		}
		seen = nil // after a conflict the claim is another one
		_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, options)
		return err
	})
	if err != nil {
		return fmt.Errorf("expanding claim %s/%s to %s: %w", claim.Namespace, claim.Name, size.String(), err)
	}
	return nil
}

// ClassOf names the class of a claim, for messages.
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	if name := claim.Spec.StorageClassName; name != nil && *name != "" {
		return "class " + *name
	}
	return "no class"
}

// RefusedExpansion explains why the API server refuses to expand a claim. ok is false for an error that is not a refusal.
func RefusedExpansion(claim *corev1.PersistentVolumeClaim, m objects.Mount, err error) (f fail.Finding, ok bool) {
	f.Object = "claim " + claim.Name
	described := fmt.Sprintf("oc describe pvc %s -n %s", claim.Name, claim.Namespace)
	text := err.Error()
	refused := kube.Refusal(err, kube.PodOwner{Namespace: claim.Namespace})
	switch {
	case kube.LacksRight(err):
		f.Seen, f.Next = "the right to patch persistentvolumeclaims is missing", fail.NextOf(kube.Problem(err))
	case strings.Contains(text, "must support resize"):
		return cannotExpand(claim, m), true
	case strings.Contains(text, "Only bound persistent volume claims"):
		f.Seen, f.Next = "it has no volume yet", described
	case refused != nil:
		f.Seen, f.Next = admissionText(err), fail.NextOf(refused)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		f.Seen, f.Next = admissionText(err), described
	default:
		return f, false
	}
	return f, true
}

// ClassRefuses reports whether the claim's class does not allow an expansion. It is false if the classes are not known.
func ClassRefuses(claim *corev1.PersistentVolumeClaim, classes []storagev1.StorageClass, m objects.Mount) (f fail.Finding, cannot bool) {
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		return cannotExpand(claim, m), true
	}
	i := slices.IndexFunc(classes, func(c storagev1.StorageClass) bool { return c.Name == *name })
	if i < 0 || classes[i].AllowVolumeExpansion != nil && *classes[i].AllowVolumeExpansion {
		return f, false
	}
	return cannotExpand(claim, m), true
}

// cannotExpand is about a class that does not allow it, or a claim without one.
func cannotExpand(claim *corev1.PersistentVolumeClaim, m objects.Mount) fail.Finding {
	larger := fmt.Sprintf("create a larger claim, copy the files, and name it by %s in the cluster file", m.Key)
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		return fail.Finding{Object: "claim " + claim.Name, Seen: "it has no storage class, and only volumes of a class can be expanded",
			Next: larger}
	}
	return fail.Finding{
		Object: "claim " + claim.Name, Seen: fmt.Sprintf("class %s does not allow it: allowVolumeExpansion is not true", *name),
		Next: fmt.Sprintf(`oc patch storageclass %s -p '{"allowVolumeExpansion":true}' (for an administrator, if its provisioner can expand `+
			`volumes); `+
			"otherwise %s", *name, larger),
	}
}

// admissionText returns the last part of a refusal: the API server names the object first, which the message has already.
func admissionText(err error) string {
	_, text, found := strings.Cut(err.Error(), " is forbidden: ")
	if !found {
		text = err.Error()
	}
	return humanize.OneLine(text, 300)
}
