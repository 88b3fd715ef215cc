// SPDX-License-Identifier: Apache-2.0

// Package kubelet models how the kubelet changes arguments and variables of containers. It is a stand-in: the real function is in a
// module of Kubernetes that no program of this project links. The local cluster's tests compare the two.
package kubelet

import "strings"

// Expand replaces $(NAME) by the variable of that name, unless there is none, and $$ by $.
func Expand(text string, variables map[string]string) string {
	var result strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		result.WriteString(before)
		if !found {
			return result.String()
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		switch {
		case strings.HasPrefix(after, "$"):
			result.WriteString("$")
			text = after[1:]
		case strings.HasPrefix(after, "(") && closed:
			value, known := variables[name]
			if !known {
				value = "$(" + name + ")"
			}
			result.WriteString(value)
			text = rest
		default:
			result.WriteString("$")
			text = after
		}
	}
}
