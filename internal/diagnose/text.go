// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
)

// maxWords bounds quoted messages, in bytes.
const maxWords = 600

func oneLine(text string) string { return humanize.OneLine(text, maxWords) }

// firstNames returns "a, b and c": the first names, and the number of the others.
func firstNames(names []string, most int) string { return humanize.FirstAnd(names, most) }

// age formats how long ago t was: 40s, 2m10s, 1h5m.
func age(t, now time.Time) string {
	d := max(now.Sub(t), 0).Round(time.Second)
	if d >= time.Hour {
		d = d.Round(time.Minute)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		return strings.TrimSuffix(text, "0s")
	}
	return text
}

// sinceText returns " since 40s", or "" if the time is unknown.
func sinceText(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + age(t, now)
}

// containsAny reports whether a text in lower case contains one of the signs.
func containsAny(text string, signs ...string) bool {
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(text, sign) })
}

// recognize adds to a finding about a pod what the known message of that kind means. ok is false if none is known.
func recognize(pod *corev1.Pod, kind, text string, f *fail.Finding) (ok bool) {
	row, ok := known.Pods().FindOf(kind, text)
	if !ok {
		return false
	}
	expand := strings.NewReplacer("{pod}", pod.Name, "{namespace}", pod.Namespace, "{node}", pod.Spec.NodeName,
		"{claims}", joined(claimsOf(&pod.Spec)))
	f.Reason, f.Final = cmp.Or(row.Reason, f.Reason), f.Final || row.Final
	f.Next = cmp.Or(expand.Replace(row.Next), f.Next)
	if row.Means != "" {
		f.Seen += "; " + expand.Replace(row.Means)
	}
	return true
}
