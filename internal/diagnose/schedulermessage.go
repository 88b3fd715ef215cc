// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// schedulerMessage is the scheduler's message about a pod for which it found no node.
type schedulerMessage struct {
	text string
	// nodes of the cluster, 0 if the message has no number.
	nodes int
	// about the whole pod, as in "pod has unbound immediate PersistentVolumeClaims".
	whole      string
	rejections []rejection
}

type rejection struct {
	nodes int
	why   string
}

var (
	noNodes = regexp.MustCompile(`(?s)^(?:.*?\b)?0/(\d+) nodes are available:\s*(.*)$`)
	counted = regexp.MustCompile(`(?s)^(\d+) (.*)$`)
	// afterwards begins what the plugins report that could make room: preemption, and before it since 1.32 dynamic resource allocation.
	afterwards = regexp.MustCompile(` (?:preemption: |no new claims to deallocate|still not schedulable|deallocation of ResourceClaim )`)
	// tainted names the taint, which Kubernetes before 1.34 did.
	tainted = regexp.MustCompile(`taint \{([^:}]+): ?([^}]*)\}`)
)

// readSchedulerMessage reads "0/5 nodes are available: 1 Insufficient nvidia.com/gpu, 4 node(s) didn't match Pod's node
// affinity/selector. preemption: ...". Text in any other form is about the whole pod.
func readSchedulerMessage(text string) schedulerMessage {
	v := schedulerMessage{text: oneLine(text)}
	m := noNodes.FindStringSubmatch(text)
	if m == nil {
		v.whole = strings.TrimSuffix(v.text, ".")
		return v
	}
	v.nodes, _ = strconv.Atoi(m[1])
	body := afterwards.Split(m[2], 2)[0]
	body = strings.TrimRight(strings.TrimSpace(body), ".,")
	// After a message about the whole pod this is about a preemption that was not tried.
	body = strings.TrimSuffix(body, ". not found")
	v.text = oneLine(body)
	for part := range strings.SplitSeq(body, ", ") {
		part = strings.TrimSpace(part)
		c := counted.FindStringSubmatch(part)
		switch {
		case c != nil:
			n, _ := strconv.Atoi(c[1])
			v.rejections = append(v.rejections, rejection{nodes: n, why: c[2]})
		case len(v.rejections) > 0:
			v.rejections[len(v.rejections)-1].why += ", " + part
		case part != "":
			v.whole = strings.TrimPrefix(v.whole+", "+part, ", ")
		}
	}
	return v
}

// essence returns the message without the nodes that the pod cannot use anyway, unless there are no others.
func (v schedulerMessage) essence() string {
	var parts []string
	for _, r := range v.rejections {
		if !strings.Contains(r.why, "node affinity/selector") && !strings.Contains(r.why, "node-role.kubernetes.io/") {
			parts = append(parts, strconv.Itoa(r.nodes)+" "+r.why)
		}
	}
	if parts == nil {
		return v.text
	}
	return oneLine(strings.Join(parts, ", "))
}

// countRejected returns the number of nodes rejected for a cause with one of the signs.
func (v schedulerMessage) countRejected(signs ...string) int {
	n := 0
	for _, r := range v.rejections {
		if containsAny(strings.ToLower(r.why), signs...) {
			n += r.nodes
		}
	}
	return n
}

// lackingResources returns the resources that some nodes lack.
func (v schedulerMessage) lackingResources() (names []corev1.ResourceName) {
	for _, r := range v.rejections {
		if name, ok := strings.CutPrefix(r.why, "Insufficient "); ok {
			names = append(names, corev1.ResourceName(name))
		}
	}
	return names
}
