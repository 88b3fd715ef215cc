// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"path"
	"regexp"
	"strings"
)

// module is a script as Python's option -m names it. The name needs to be no identifier: Python looks for files of that name.
var module = regexp.MustCompile(`^-m *([^\s./-][^\s./]*(?:\.[^\s./]+)*)$`)

// Module returns the PACKAGE.MODULE of a script that is given as -m PACKAGE.MODULE, "" for any other script.
func Module(script string) string {
	if match := module.FindStringSubmatch(strings.TrimSpace(script)); match != nil {
		return match[1]
	}
	return ""
}

// ModuleFiles returns the paths of the files from which python -m may run the module, relative to a folder of Python's search
// path.
func ModuleFiles(module string) []string {
	base := strings.ReplaceAll(module, ".", "/")
	return []string{base + ".py", base + "/__main__.py"}
}

// IsPython reports whether Python runs the script.
func IsPython(script string) bool { return path.Ext(script) == ".py" || Module(script) != "" }
