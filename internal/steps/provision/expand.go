// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// expandTime is how long the storage may take to expand claims, and the kubelet to make file systems grow. The storage continues after
// it, and the nodes start with the size that the claims have.
const expandTime = 2 * time.Minute

// expandClaims expands the existing claims that are smaller than requested, each by itself, and waits until they have the size, or
// until only their file system has to grow. What the storage refuses or does not manage is a warning: the claim stays as it is.
func (p *provisioner) expandClaims(ctx context.Context) error {
	asked := map[string]objects.Mount{} // by claim
	for _, m := range p.request.Mounts() {
		for _, claim := range p.request.Claims(m) {
			if m.Asked {
				asked[claim] = m
			}
		}
	}
	if len(asked) == 0 {
		return nil
	}
	p.growing, p.missing = map[string]objects.Mount{}, map[string]objects.Mount{}
	existing, err := p.claims(ctx)
	if err != nil {
		return err
	}
	begun := map[string]objects.Mount{}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		m, claim := asked[name], existing[name]
		switch {
		case claim == nil && p.request.Storage == cluster.NodeStorage:
			p.missing[name] = m // the template of an existing StatefulSet may have another size
		case claim == nil:
		default:
			began, err := p.expandClaim(ctx, claim, m)
			if err != nil {
				return err
			}
			if began {
				begun[name] = m
			}
		}
	}
	return p.waitExpanded(ctx, begun, false)
}

// claims returns the namespace's claims by name.
func (p *provisioner) claims(ctx context.Context) (map[string]*corev1.PersistentVolumeClaim, error) {
	list, err := p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing claims in %s: %w", p.request.Namespace, err))
	}
	byName := map[string]*corev1.PersistentVolumeClaim{}
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	return byName, nil
}

// expandClaim begins to expand one claim, if it is smaller than requested.
func (p *provisioner) expandClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, m objects.Mount) (began bool, err error) {
	has, size := kube.ClaimSize(claim), m.Size.String()
	requested := claim.Spec.Resources.Requests.Storage().String()
	switch env.FitOf(claim, m.Size) {
	case env.Larger:
		p.log.Warn(fmt.Sprintf("Claim %s stays as it is with %s: %s was asked for, and no claim is ever made smaller.", claim.Name, requested,
			size))
	case env.Unbound:
		p.growing[claim.Name] = m
		p.log.Info(fmt.Sprintf("Claim %s has no volume yet; it is expanded from %s to %s once it has one.", claim.Name, requested, size))
	case env.Expanding:
		p.growing[claim.Name] = m
		p.log.Info(fmt.Sprintf("Claim %s has %s and is being expanded to %s since an earlier request.", claim.Name, has, size))
	case env.Smaller:
		if err := p.environment().Expand(ctx, claim, m.Size, false); err != nil {
			finding, refused := env.RefusedExpansion(claim, m, err)
			if !refused {
				return false, kube.Problem(err)
			}
			p.log.Warn(fmt.Sprintf("Claim %s stays as it is with %s; %s was asked for: %s. Next: %s",
				claim.Name, has, size, finding.Seen, finding.Next))
			return false, nil
		}
		p.log.Info(fmt.Sprintf("Claim %s is being expanded from %s to %s (%s).", claim.Name, has, size, env.ClassOf(claim)))
		return true, nil
	}
	return false, nil
}

// waitExpanded watches claims until each has its size or cannot get it. Unless pods mount them, it is enough that only file systems
// have to grow.
func (p *provisioner) waitExpanded(ctx context.Context, begun map[string]objects.Mount, mounted bool) error {
	if len(begun) == 0 {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, expandTime)
	defer cancel()
	// Provisioners that set no condition report a failure only by an event.
	failures := p.resizeFailures(waiting)
	left := maps.Clone(begun)
	err := kube.WatchUntil(waiting, "the claims that are expanded", p.clients.Kube.CoreV1().PersistentVolumeClaims(p.request.Namespace),
		metav1.ListOptions{},
		func(claims []*corev1.PersistentVolumeClaim) (bool, error) {
			for _, claim := range claims {
				if m, open := left[claim.Name]; open && p.hasGrown(claim, m, failures(claim), mounted) {
					delete(left, claim.Name)
				}
			}
			return len(left) == 0, nil
		})
	if err == nil || ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded) {
		for _, name := range slices.Sorted(maps.Keys(left)) {
			m := left[name]
			p.log.Warn(fmt.Sprintf("Claim %s does not have %s after %s; the storage continues. Next: oc describe pvc %s -n %s",
				name, m.Size.String(), expandTime, name, p.request.Namespace))
		}
		return nil
	}
	return err
}

// hasGrown reports whether nothing is left to wait for, and logs why.
func (p *provisioner) hasGrown(claim *corev1.PersistentVolumeClaim, m objects.Mount, failure string, mounted bool) bool {
	growth := env.GrowthOf(claim, m.Size)
	if growth.Failed == "" {
		growth.Failed = failure
	}
	switch {
	case growth.Done:
		p.log.Info(fmt.Sprintf("Claim %s has %s now.", claim.Name, kube.ClaimSize(claim)))
	case growth.Failed != "":
		p.log.Warn(fmt.Sprintf("Claim %s stays at %s; %s was asked for: %s: %s. Next: oc describe pvc %s -n %s", claim.Name,
			kube.ClaimSize(claim),
			m.Size.String(), env.ClassOf(claim), growth.Failed, claim.Name, claim.Namespace))
	case growth.NeedsPod && !mounted:
		p.growing[claim.Name] = m
		p.log.Info(fmt.Sprintf("The volume of claim %s has %s; its file system grows when a node mounts it.", claim.Name, m.Size.String()))
	default:
		return false
	}
	return true
}

// resizeFailures watches the events of claims until ctx ends. The function that it returns finds the newest failure to expand a claim
// since now, "" for none.
func (p *provisioner) resizeFailures(ctx context.Context) func(*corev1.PersistentVolumeClaim) string {
	const tolerance = 2 * time.Second // of the clock of events
	since := p.now().Add(-tolerance)
	var mu sync.Mutex
	failures := map[types.UID]string{} // mu guards failures
	go func() {
		options := metav1.ListOptions{FieldSelector: "involvedObject.kind=PersistentVolumeClaim"}
		_ = kube.WatchUntil(ctx, "the events of claims", p.clients.Kube.CoreV1().Events(p.request.Namespace), options,
			func(seen []*corev1.Event) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				for _, event := range slices.SortedFunc(slices.Values(seen), func(a, b *corev1.Event) int {
					return kube.LastTime(a).Compare(kube.LastTime(b))
				}) {
					if event.Reason == "VolumeResizeFailed" && kube.LastTime(event).After(since) {
						failures[event.InvolvedObject.UID] = humanize.OneLine(event.Message, 300)
					}
				}
				return false, nil
			})
	}()
	return func(claim *corev1.PersistentVolumeClaim) string {
		mu.Lock()
		defer mu.Unlock()
		return failures[claim.UID]
	}
}

// finishClaims looks at the claims again that could not be expanded, or had not grown, before pods mounted them.
func (p *provisioner) finishClaims(ctx context.Context) error {
	growing, missing := p.growing, p.missing
	p.growing, p.missing = map[string]objects.Mount{}, nil // a claim may have no volume any more
	if len(growing)+len(missing) == 0 {
		return nil
	}
	existing, err := p.claims(ctx)
	if err != nil {
		return err
	}
	begun := map[string]objects.Mount{}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if claim := existing[name]; claim != nil && env.FitOf(claim, missing[name].Size) == env.Smaller {
			growing[name] = missing[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(growing)) {
		m, claim := growing[name], existing[name]
		if claim == nil {
			continue
		}
		began := false
		switch growth := env.GrowthOf(claim, m.Size); env.FitOf(claim, m.Size) {
		case env.Fits:
			p.log.Info(fmt.Sprintf("Claim %s has %s now.", name, kube.ClaimSize(claim)))
		case env.Expanding:
			if began = growth.NeedsPod || growth.Failed != ""; !began {
				p.log.Warn(fmt.Sprintf("Claim %s still has %s; the storage is expanding it to %s. Next: oc describe pvc %s -n %s",
					name, kube.ClaimSize(claim), m.Size.String(), name, claim.Namespace))
			}
		default:
			if began, err = p.expandClaim(ctx, claim, m); err != nil {
				return err
			}
		}
		if began {
			begun[name] = m
		}
	}
	return p.waitExpanded(ctx, begun, true)
}
