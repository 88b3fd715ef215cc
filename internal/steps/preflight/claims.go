// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Names of the checks of claims.
const (
	claimsCheck  = "claims"
	unnamedCheck = "other claims"
)

// claimsOf compares the claims of the namespace with those that the environment would mount: whether it can use them, whether they
// are as large as requested, and whether others may have the files that trainings want.
func (p *probe) claimsOf(ctx context.Context) []Check {
	list, err := p.Clients.Kube.CoreV1().PersistentVolumeClaims(p.Request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Check{unread(claimsCheck, "the claims of namespace "+p.Request.Namespace, err)}
	}
	s := claimSurvey{probe: p, request: p.Request, all: list.Items}
	// provision decides about storage auto, which shares unless the class cannot.
	if s.request.Storage == cluster.AutoStorage && !p.shared() {
		s.request.Storage = cluster.NodeStorage
	}
	if classes, err := p.Clients.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{}); err == nil {
		s.classes = classes.Items
	}
	var checks []Check
	for _, m := range s.request.Mounts() {
		checks = append(checks, s.mount(ctx, m)...)
	}
	return append(checks, s.unnamed(ctx)...)
}

// claimSurvey has the claims of a namespace, and the classes of the cluster, nil if they may not be read.
type claimSurvey struct {
	*probe
	request objects.Request
	all     []corev1.PersistentVolumeClaim
	classes []storagev1.StorageClass
}

func (s *claimSurvey) find(name string) *corev1.PersistentVolumeClaim {
	i := slices.IndexFunc(s.all, func(c corev1.PersistentVolumeClaim) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.all[i]
}

// mount checks the claims that exist for a mount, and reports one that the cluster file names and that does not exist.
func (s *claimSurvey) mount(ctx context.Context, m objects.Mount) (checks []Check) {
	shared := s.request.Storage != cluster.NodeStorage
	if m.Named && !shared {
		checks = append(checks, newCheck(claimsCheck, Warning, "--storage=rwx mounts it",
			"claim %s (%s) is not mounted: with storage %s each node has claims of its own", m.Claim, m.Key, cluster.NodeStorage))
	}
	var sizes []string
	for _, name := range s.request.Claims(m) {
		claim := s.find(name)
		switch {
		case claim == nil && m.Named && shared:
			return append(checks, newCheck(claimsCheck, Warning, fmt.Sprintf("oc get pvc -n %s; if it should exist, correct %s or the namespace",
				s.Request.Namespace, m.Key),
				"claim %s (%s) does not exist: provision creates an empty one of %s for %s", name, m.Key, m.Size.String(), m.Path))
		case claim == nil:
			continue
		}
		if wrong, is := s.unusable(claim, m, shared); is {
			return append(checks, wrong)
		}
		found := s.size(ctx, claim, m)
		checks = append(checks, found...)
		if found == nil {
			sizes = append(sizes, fmt.Sprintf("%s (%s)", name, kube.ClaimSize(claim)))
		}
	}
	if len(sizes) > 0 {
		checks = append(checks, newCheck(claimsCheck, OK, "", "%s for %s", humanize.First(sizes, 4), m.Path))
	}
	return checks
}

// unusable is about a claim that provision would refuse.
func (s *claimSurvey) unusable(claim *corev1.PersistentVolumeClaim, m objects.Mount, shared bool) (check Check, is bool) {
	other := fmt.Sprintf("name another claim by %s in the cluster file, or use another --name", m.Key)
	switch {
	case claim.DeletionTimestamp != nil:
		return newCheck(claimsCheck, Blocked, fmt.Sprintf("oc describe pvc %s -n %s (what uses it?)", claim.Name, claim.Namespace),
			"claim %s for %s is being deleted since %s", claim.Name, m.Path, claim.DeletionTimestamp).because(fail.ClaimUnbound), true
	case objects.IsBlock(claim):
		return newCheck(claimsCheck, Blocked, other, "claim %s for %s has volume mode Block, want Filesystem", claim.Name, m.Path).
			because(fail.EnvironmentDiffers), true
	case shared && s.request.Nodes > 1 && !objects.IsShared(claim):
		if s.request.Storage == cluster.AutoStorage && !m.Named {
			return check, false // provision then gives each node a claim
		}
		return newCheck(claimsCheck, Blocked, "use --storage=volumeClaimTemplates, or "+other, "claim %s for %s of %d nodes has access modes "+
			"%v, want ReadWriteMany",
			claim.Name, m.Path, s.request.Nodes, claim.Spec.AccessModes).because(fail.EnvironmentDiffers), true
	}
	return check, false
}

// size compares the claim with the requested size; nil if it fits.
func (s *claimSurvey) size(ctx context.Context, claim *corev1.PersistentVolumeClaim, m objects.Mount) []Check {
	if !m.Asked {
		return nil
	}
	has, want := kube.ClaimSize(claim), m.Size.String()
	describe := fmt.Sprintf("oc describe pvc %s -n %s", claim.Name, claim.Namespace)
	switch env.FitOf(claim, m.Size) {
	case env.Larger:
		return []Check{newCheck(claimsCheck, Warning, "correct the size in the cluster file or the param, or leave it out",
			"claim %s stays at %s: %s is asked for, and no claim is ever made smaller", claim.Name, claim.Spec.Resources.Requests.Storage(), want)}
	case env.Unbound:
		return []Check{newCheck(claimsCheck, Unknown, describe, "claim %s has no volume yet: provision expands it from %s to %s once it has one",
			claim.Name, has, want)}
	case env.Expanding:
		growth := env.GrowthOf(claim, m.Size)
		if growth.Failed != "" {
			return []Check{newCheck(claimsCheck, Warning, describe, "claim %s stays at %s: %s cannot expand it to %s: %s",
				claim.Name, has, env.ClassOf(claim), want, growth.Failed)}
		}
		return []Check{newCheck(claimsCheck, OK, "", "claim %s has %s and is being expanded to %s", claim.Name, has, want)}
	case env.Smaller:
		return []Check{s.expansion(ctx, claim, m)}
	}
	return nil
}

// expansion asks the class, and then the API server by a dry run, which knows quotas and limits, too, whether the claim can be
// expanded. The answer never blocks a run: the claim stays as it is.
func (s *claimSurvey) expansion(ctx context.Context, claim *corev1.PersistentVolumeClaim, m objects.Mount) Check {
	has, want := kube.ClaimSize(claim), m.Size.String()
	stays := func(f fail.Finding) Check {
		return newCheck(claimsCheck, Warning, f.Next, "claim %s stays at %s, not %s: %s", claim.Name, has, want, f.Seen)
	}
	if f, cannot := env.ClassRefuses(claim, s.classes, m); cannot {
		return stays(f)
	}
	err := s.env().Expand(ctx, claim, m.Size, true)
	if err == nil {
		return newCheck(claimsCheck, OK, "", "claim %s is expanded from %s to %s (%s allows it)", claim.Name, has, want, env.ClassOf(claim))
	}
	if f, refused := env.RefusedExpansion(claim, m, err); refused {
		return stays(f)
	}
	return unread(claimsCheck, fmt.Sprintf("whether claim %s can be expanded from %s to %s", claim.Name, has, want), err)
}

// unnamed reports claims that may have the files that trainings want, while the environment mounts another claim that does not exist
// yet or is younger. The API server does not show files: a claim with a volume that nodes could share may be empty.
func (s *claimSurvey) unnamed(ctx context.Context) (checks []Check) {
	mine := s.request.AllClaims()
	var names []string
	var pods []corev1.Pod
	if list, err := s.Clients.Kube.CoreV1().Pods(s.Request.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		pods = list.Items
	}
	for i := range s.all {
		claim := &s.all[i]
		if slices.Contains(mine, claim.Name) || !s.mayBeWanted(claim) {
			continue
		}
		var instead []objects.Mount
		for _, m := range s.request.Mounts() {
			if s.instead(claim, m) {
				instead = append(instead, m)
			}
		}
		if len(instead) > 0 {
			names = append(names, claim.Name)
			checks = append(checks, s.aboutUnnamed(claim, instead, pods))
		}
	}
	const most = 3
	if len(checks) > most {
		checks = append(checks[:most], newCheck(unnamedCheck, Warning, "oc get pvc -n "+s.Request.Namespace,
			"%s exist too, and the cluster file does not name them", humanize.First(names[most:], 8)))
	}
	return checks
}

// mayBeWanted reports whether a claim that the environment does not mount may have files for it: one that was not created for another
// environment. Claims of this one are left by another storage mode, or by a cluster file that named none.
func (s *claimSurvey) mayBeWanted(claim *corev1.PersistentVolumeClaim) bool {
	switch claim.Labels[objects.EnvironmentLabel] {
	case "":
		return objects.MayHaveFiles(claim)
	case s.Request.Name:
		return claim.Status.Phase == corev1.ClaimBound && len(claim.OwnerReferences) == 0
	}
	return false
}

// instead reports whether the claim may have the files of a mount for which the environment has, or would get, another claim. A claim
// that is younger than the environment's own is something else.
func (s *claimSurvey) instead(claim *corev1.PersistentVolumeClaim, m objects.Mount) bool {
	guess := objects.KeyFor(claim.Name)
	if m.Named || guess != "" && guess != m.Key {
		return false
	}
	own := s.find(s.request.Claims(m)[0])
	if own == nil {
		return true
	}
	// Only a name with a hint is worth a warning in each run, and only mode rwx has keys that end it.
	return guess != "" && s.request.Storage != cluster.NodeStorage && claim.CreationTimestamp.Time.Before(own.CreationTimestamp.Time)
}

func (s *claimSurvey) aboutUnnamed(claim *corev1.PersistentVolumeClaim, instead []objects.Mount, pods []corev1.Pod) Check {
	var does, next []string
	for _, m := range instead {
		own := s.request.Claims(m)[0]
		word := "creates an empty " + own
		if s.find(own) != nil {
			word = "mounts the younger " + own
		}
		does = append(does, fmt.Sprintf("%s for %s", word, m.Path))
		next = append(next, fmt.Sprintf("%s: %s", m.Key, claim.Name))
	}
	fix := strings.Join(next, " or ") + " in the cluster file"
	switch {
	case s.request.Storage == cluster.NodeStorage:
		fix = "--storage=rwx with " + fix
	case !objects.IsShared(claim):
		fix = "--storage=volumeClaimTemplates mounts it, if it is a node's own claim"
	default:
		fix += fmt.Sprintf("; or, to keep what is mounted, %s: %s", instead[0].Key, instead[0].Claim)
	}
	return newCheck(unnamedCheck, Warning, fix, "claim %s (%s) exists and the cluster file does not name it: provision %s. Whether it has "+
		"files is not known: the API server shows none",
		claim.Name, signs(claim, pods), strings.Join(does, " and "))
}

// signs returns what the API server shows of a claim's use.
func signs(claim *corev1.PersistentVolumeClaim, pods []corev1.Pod) string {
	parts := []string{kube.ClaimSize(claim), "bound"}
	var by []string
	for _, pod := range pods {
		mounts := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		})
		if mounts && !kube.HasEnded(&pod) {
			by = append(by, pod.Name)
		}
	}
	parts = append(parts, "mounted now by "+cmp.Or(humanize.First(by, 3), "no pod"))
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(claim.Labels)) {
		if key != objects.EnvironmentLabel && !strings.HasPrefix(key, "app.kubernetes.io/managed-by") {
			labels = append(labels, key+"="+claim.Labels[key])
		}
	}
	if len(labels) > 0 {
		parts = append(parts, "labels "+humanize.First(labels, 3))
	}
	return strings.Join(parts, ", ")
}
