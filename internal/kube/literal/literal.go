// SPDX-License-Identifier: Apache-2.0

// Package literal writes texts so that the kubelet leaves them as they are.
package literal

import "strings"

// Escape returns an argument, or the value of a variable, by which a container gets exactly this text: the kubelet replaces $(NAME) by the
// variable of that name, and $$ by $.
func Escape(text string) string { return strings.ReplaceAll(text, "$", "$$") }
