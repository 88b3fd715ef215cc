// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

var (
	exceededQuota = regexp.MustCompile(`exceeded quota: ([^,]+), requested: (\S+), used: (\S+), limited: (\S+)`)
	mustSpecify   = regexp.MustCompile(`(?s)failed quota: ([^:]+): must specify (.*)$`)
	limitPer      = regexp.MustCompile(`(maximum|minimum) (\S+) usage per (Container|Pod|PersistentVolumeClaim) is (\S+?)[,.] `)
)

// quotaDetail lists the refused resources. A quota that is too small even if it were empty makes the finding final.
func (e *explainer) quotaDetail(text string, f *fail.Finding) {
	if m := limitPer.FindStringSubmatch(text); m != nil {
		f.Next = fmt.Sprintf("set %s in the cluster file within the limit range (oc describe limitrange -n %s)", limitedKey(m), e.namespace())
		return
	}
	if m := mustSpecify.FindStringSubmatch(text); m != nil {
		f.Seen = fmt.Sprintf("quota %s requires every container to set %s", m[1], oneLine(m[2]))
		f.Next = fmt.Sprintf("set resources.requests and resources.limits in the cluster file (oc describe quota %s -n %s)", m[1], e.namespace())
		return
	}
	m := exceededQuota.FindStringSubmatch(text)
	if m == nil {
		return
	}
	name := m[1]
	asked, used, hard := parseQuantities(m[2]), parseQuantities(m[3]), parseQuantities(m[4])
	e.refreshQuota(name, used, hard)
	f.Final = false
	var parts []string
	for _, a := range strings.Split(strings.TrimRight(m[2], ","), ",") {
		resource, _, _ := strings.Cut(a, "=")
		r := corev1.ResourceName(resource)
		total := asked[r].DeepCopy()
		if !strings.Contains(text, "ersistentvolumeclaims") || e.StatefulSet != nil && len(e.StatefulSet.Spec.VolumeClaimTemplates) > 0 {
			total.Mul(int64(e.Replicas()))
		}
		part := fmt.Sprintf("%s: each asks %s, used %s of %s", resource, amount(asked, r), amount(used, r), amount(hard, r))
		if limit, known := hard[r]; known && total.Cmp(limit) > 0 {
			part += fmt.Sprintf(", and %d of them ask %s in all", e.Replicas(), total.String())
			f.Final = true
		}
		parts = append(parts, part)
	}
	f.Seen = fmt.Sprintf("quota %s is exceeded: %s", name, strings.Join(parts, "; "))
}

// limitedKey names the cluster file's keys for what a limit range refuses.
func limitedKey(m []string) string {
	switch {
	case m[3] == "PersistentVolumeClaim":
		return "storage.workspace_size and storage.datasets_size"
	case m[1] == "minimum":
		return "resources.requests." + m[2]
	}
	return "resources.limits." + m[2]
}
