package launch

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// NamedFile is a file of the repository that a param names.
type NamedFile struct {
	Param, Path string
	// Missing is the reason if the repository does not have it.
	Missing fail.Reason
}

// NamedFiles returns the files that the params name; value returns a param's value. With launcher command the script may
// also be a program in the image, unless its path has a folder.
func NamedFiles(value func(param string) string) (files []NamedFile) {
	for _, file := range []NamedFile{
		{"script", value("script"), fail.ScriptNotFound},
		{"requirements", value("requirements"), fail.RequirementsFailed},
		{"deepspeed-config", value("deepspeed-config"), fail.InvalidInput},
	} {
		program := file.Param == "script" && value("launcher") == string(agent.Command) && !strings.Contains(file.Path, "/")
		if filepath.IsLocal(file.Path) && !program {
			files = append(files, file)
		}
	}
	return files
}

// Next is what to do if the file is missing. exists reports whether the repository has a path.
func (f NamedFile) Next(exists func(path string) bool) string {
	if script, arguments, ok := strings.Cut(f.Path, " "); ok && f.Param == "script" && exists(script) {
		return fmt.Sprintf("arguments of the script are values of the param script-args; with mlenv run they go after --: %s -- %s", script, arguments)
	}
	return "name it by its path from the top of the repository, or add it there"
}
