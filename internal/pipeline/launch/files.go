// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// NamedFile is a file of the repository that a param names.
type NamedFile struct {
	Param, Value string
	// Path is Value, or where the module is that Value names.
	Path string
	// Missing is the reason if the repository does not have it.
	Missing fail.Reason
}

// FileParams returns the params that name files of the repository.
func FileParams() []string { return []string{"script", "requirements", "deepspeed-config"} }

// NamedFiles returns the files that the params name; value returns a param's value, and exists reports whether the repository has
// a path. With launcher command the script may also be a program in the image, unless its path has a folder or a space.
func NamedFiles(value func(param string) string, exists func(path string) bool) (files []NamedFile) {
	reasons := []fail.Reason{fail.ScriptNotFound, fail.RequirementsFailed, fail.InvalidInput}
	for i, param := range FileParams() {
		file := NamedFile{Param: param, Value: value(param), Path: value(param), Missing: reasons[i]}
		installed := false
		if param == "script" {
			installed = value("launcher") == string(agent.Command) && !strings.ContainsAny(file.Value, "/ ")
			if module := agent.Module(file.Value); module != "" {
				file.Path = moduleFile(module, exists)
				installed = file.Path == ""
			}
		}
		if filepath.IsLocal(file.Path) && !installed {
			files = append(files, file)
		}
	}
	return files
}

// moduleFile returns the file of the repository from which Python runs the module. It may be missing if the repository has the
// module's package. It is "" for modules that only the image or the requirements may have.
func moduleFile(module string, exists func(path string) bool) string {
	files := agent.ModuleFiles(module)
	if at := slices.IndexFunc(files, exists); at >= 0 {
		return files[at]
	}
	top, _, _ := strings.Cut(module, ".")
	if exists(top+".py") || exists(top+"/__init__.py") {
		return files[0]
	}
	return ""
}

// NextStep returns what to do if the file is missing. exists reports whether the repository has a path.
func (f NamedFile) NextStep(exists func(path string) bool) string {
	if f.Param == "script" {
		var words []string
		if !strings.HasPrefix(f.Value, "-m") {
			words = strings.Fields(f.Value)
		}
		if at := slices.IndexFunc(words, exists); at >= 0 && at < len(words)-1 {
			return fmt.Sprintf("arguments of the script are values of the param script-args; with mlenv run they go after --: %s -- %s",
				words[at], strings.Join(words[at+1:], " "))
		} else if at > 0 {
			return "name only the script, which the launcher starts: " + words[at]
		}
		// Such as pkg.main, pkg/main or -m pkg.main.py.
		module := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(f.Value, "-m "), ".py"), "/", ".")
		files := agent.ModuleFiles(module)
		if at := slices.IndexFunc(files, exists); at >= 0 {
			return fmt.Sprintf("name the file, %s, or the module, -m %s", files[at], module)
		}
	}
	return "name it by its path from the top of the repository, or add it there"
}
