package podagent

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// machineOf is the processor of a program by Python's name, "" for another file.
func machineOf(program []byte) string {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return ""
	}
	names := map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}
	return cmp.Or(names[file.Machine], file.Machine.String())
}

// goArch is Go's name of a processor, as in names of files.
func goArch(machine string) string {
	return cmp.Or(map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[machine], machine)
}

// candidates are paths of the agent's program for a machine: the requested one, else those next to this program and in the
// steps image.
func candidates(asked, machine string) []string {
	if asked != "" {
		return []string{asked}
	}
	var files []string
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		for _, name := range []string{"mlenv-agent-linux-" + goArch(machine), "mlenv-agent"} {
			files = append(files, filepath.Join(filepath.Dir(self), name))
		}
	}
	if runtime.GOOS == "linux" {
		files = append(files, "/mlenv-agent")
	}
	return files
}

// readProgram reads the agent's program for a machine and compresses it. Error: InvalidInput with all candidates.
func readProgram(asked, machine string) ([]byte, error) {
	var seen []string
	for _, file := range candidates(asked, machine) {
		content, err := os.ReadFile(file)
		if err != nil {
			seen = append(seen, err.Error())
			continue
		}
		got := machineOf(content)
		if got == machine {
			return compressed(content)
		}
		if got == "" {
			got = "no Linux program"
		}
		seen = append(seen, fmt.Sprintf("%s is %s", file, got))
	}
	return nil, fail.Advise(fail.Becausef(fail.InvalidInput, "looking for the agent's program for %s: %s: want one, built for Linux on %s", machine, strings.Join(seen, "; "), goArch(machine)),
		"take it out of the steps image and name it by --agent: oc image extract STEPS-IMAGE --path /mlenv-agent:. --filter-by-os=linux/%s", goArch(machine))
}

func compressed(content []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(content)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}
