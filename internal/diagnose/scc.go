// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

var (
	// sccRefusals is followed by a list in brackets, or by the only objection of the only constraint.
	sccRefusals = regexp.MustCompile(`(?s)unable to validate against any security context constraint: (?:\[(.*)\]|([^\[].*))`)
	// sccItem begins each item of that list; commas stand inside items too.
	sccItem = regexp.MustCompile(`(?:^|,\s*)(provider |spec\.|pod\.)`)
	// sccProvider is an item with a constraint's name and what it refuses.
	sccProvider = regexp.MustCompile(`(?s)^provider "?([^":]+)"?: (.*)$`)
	// sccField is the field of an item, as in .containers[0].capabilities.add.
	sccField = regexp.MustCompile(`(?s)^\.?(?:spec\.)?(initContainers|containers)\[(\d+)\]\.(.*)$`)
	sccValue = regexp.MustCompile(`(?s)^(?:securityContext\.)*([\w.\[\]]+): (?:Invalid value: ((?:"[^"]*"|\[\]\w+\{[^}]*\}|[^:\s"]+)): ` +
		`|Forbidden: )(.*)$`)
)

// securityConstraints lists what the usable constraints refuse, container by container, and names those that the account may not use. It
// is "" for any other text. unusable reports whether the pod is pinned to one that its account may not use.
func (e *explainer) securityConstraints(text string) (seen string, unusable bool) {
	m := sccRefusals.FindStringSubmatch(text)
	if m == nil {
		return "", false
	}
	var refused, closed []string
	by := ""
	items := strings.TrimPrefix(sccItem.ReplaceAllString(m[1]+m[2], "\x00$1"), "\x00")
	for item := range strings.SplitSeq(items, "\x00") {
		item = strings.Trim(item, ", \n\t")
		if p := sccProvider.FindStringSubmatch(item); p != nil {
			if strings.Contains(p[2], "not usable by user or serviceaccount") {
				closed = append(closed, p[1])
				continue
			}
			by, item = p[1], p[2]
		}
		if what := e.refusedField(item); !slices.Contains(refused, what) {
			refused = append(refused, what)
		}
	}
	if pinned := e.pinned(); pinned != "" && slices.Contains(closed, pinned) {
		return fmt.Sprintf("the pod is pinned to %s, which is not usable by user or service account %s", pinned, e.serviceAccount()), true
	}
	seen = fmt.Sprintf("service account %s may use no security context constraint at all", e.serviceAccount())
	if len(refused) > 0 {
		seen = cmp.Or(by, "every security context constraint that may be used") + " refuses " + strings.Join(refused, "; ")
	}
	if len(closed) > 0 {
		seen += fmt.Sprintf("; service account %s may not use %s", e.serviceAccount(), firstNames(closed, 4))
	}
	return oneLine(seen), false
}

// refusedCapability is a capability that a constraint does not allow.
var refusedCapability = regexp.MustCompile(`capabilities\.add: Invalid value: "([^"]+)": capability may not be added`)

func refusedCapabilities(text string) (names []string) {
	for _, m := range refusedCapability.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// pinned returns the only constraint that may admit the pods, or "".
func (e *explainer) pinned() string {
	return e.StatefulSet.Spec.Template.Annotations[objects.SCCAnnotation]
}

// refusedField returns one refusal, as "capabilities.add IPC_LOCK of container train: capability may not be added".
func (e *explainer) refusedField(item string) string {
	where := "the pod"
	if m := sccField.FindStringSubmatch(item); m != nil {
		where, item = e.containerAt(m[1], m[2]), m[3]
	}
	item = strings.TrimPrefix(strings.TrimPrefix(item, "."), "spec.")
	m := sccValue.FindStringSubmatch(item)
	if m == nil {
		return oneLine(item)
	}
	field := m[1]
	if m[2] != "" {
		field += " " + strings.Trim(m[2], `"`)
	}
	return fmt.Sprintf("%s of %s: %s", field, where, oneLine(m[3]))
}

// containerAt names a container by its field and index in the template.
func (e *explainer) containerAt(field, index string) string {
	i, _ := strconv.Atoi(index) // the largest number if it does not fit
	containers, title := e.template().Containers, "container "
	if field == "initContainers" {
		containers, title = e.template().InitContainers, "init container "
	}
	if i >= len(containers) {
		return field + "[" + index + "]"
	}
	return title + containers[i].Name
}
