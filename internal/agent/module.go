// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/source/script"
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

// ScriptArguments returns which arguments of launchers a script of a tree takes; none for one that Python does not run.
func ScriptArguments(tree fs.FS, of string) script.Arguments {
	switch module := Module(of); {
	case module != "":
		return script.Read(tree, ModuleFiles(module), ".")
	case IsPython(of):
		return script.Read(tree, []string{of}, path.Dir(of))
	}
	return script.Arguments{}
}

// IsPython reports whether Python runs the script.
func IsPython(script string) bool { return path.Ext(script) == ".py" || Module(script) != "" }
