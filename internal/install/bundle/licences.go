package bundle

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

const projectLicence = "Apache-2.0"

// Licence is a module that is linked into a program, with its terms.
type Licence struct {
	// Module is its path, and for Go's own library "std".
	Module, Version string
	// SPDX is an expression of SPDX's names, or NOASSERTION if the texts are unknown.
	SPDX string
	// Texts are the licences and notices, by the name of their file.
	Texts map[string][]byte
}

const noAssertion = "NOASSERTION"

// Licences are those of all modules in the programs' build information, sorted by module. A module without a licence is
// an error, because it must not be published.
func (s Source) Licences(ctx context.Context, programs ...string) ([]Licence, error) {
	modules := map[string]Licence{}
	for _, program := range programs {
		linked, err := linkedModules(program)
		if err != nil {
			return nil, err
		}
		for _, each := range linked {
			modules[each.Module] = each
		}
	}
	dirs, err := s.moduleFolders(ctx, modules)
	if err != nil {
		return nil, fmt.Errorf("looking for licences: %w", err)
	}
	licences := make([]Licence, 0, len(modules))
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		licence := modules[name]
		if licence.Module == module {
			licence.Version = s.Version
		}
		if err := licence.read(dirs[name]); err != nil {
			return nil, err
		}
		licences = append(licences, licence)
	}
	return licences, nil
}

// linkedModules are the modules of a program, with its own module and Go's library, without licences.
func linkedModules(program string) ([]Licence, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("reading what %s is linked from: %w", filepath.Base(program), err)
	}
	linked := []Licence{{Module: info.Main.Path}, {Module: goLibrary, Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		linked = append(linked, Licence{Module: dependency.Path, Version: dependency.Version})
	}
	return linked, nil
}

const goLibrary = "std"

func (s Source) moduleFolders(ctx context.Context, modules map[string]Licence) (map[string]string, error) {
	root, err := s.goOutput(ctx, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{module: s.Dir, goLibrary: strings.TrimSpace(string(root))}
	args := []string{"mod", "download", "-json"}
	for name, each := range modules {
		if dirs[name] == "" {
			args = append(args, name+"@"+each.Version)
		}
	}
	if len(args) == 3 {
		return dirs, nil
	}
	out, err := s.goOutput(ctx, args...)
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var downloaded struct{ Path, Dir string }
		if err := decoder.Decode(&downloaded); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the output of go mod download: %w", err)
		}
		dirs[downloaded.Path] = downloaded.Dir
	}
}

func (s Source) goOutput(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = s.Dir, goEnvironment()
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running go %s: %w", strings.Join(args[:2], " "), err)
	}
	return out, nil
}

// licenceName matches the files in a module's folder that have its terms and notices.
var licenceName = regexp.MustCompile(`(?i)^((un)?licen[cs]es?|copying|notices?|patents)([-._].*)?$`)

// termsName matches the files with the terms. SPDX has no names for the others.
var termsName = regexp.MustCompile(`(?i)^((un)?licen|copying)`)

// sourceName matches files that only have such a name.
var sourceName = regexp.MustCompile(`(?i)\.(go|ya?ml|json|sh|tmpl)$`)

func (l *Licence) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the licence of %s: %w", l.Module, err)
	}
	l.Texts = map[string][]byte{}
	var names []string
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenceName.MatchString(entry.Name()) || sourceName.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return fmt.Errorf("reading the licence of %s: %w", l.Module, err)
		}
		l.Texts[entry.Name()] = text
		if !termsName.MatchString(entry.Name()) {
			continue
		}
		for _, name := range termsIn(text) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(l.Texts) == 0 {
		return fmt.Errorf("reading the licence of %s %s: its folder has none; want a file such as LICENSE", l.Module, l.Version)
	}
	l.SPDX = expression(names)
	return nil
}

func termsIn(text []byte) (names []string) {
	found := licensecheck.Scan(text)
	if found.Percent < 75 { // the rest is names and years
		return nil
	}
	for _, match := range found.Match {
		if !match.IsURL {
			names = append(names, match.ID)
		}
	}
	return names
}

// expression is SPDX's for several licences that all hold.
func expression(names []string) string {
	return cmp.Or(strings.Join(names, " AND "), noAssertion)
}

func licenceFiles(licences []Licence, into string) []entry {
	var files []entry
	for _, licence := range licences {
		for _, name := range slices.Sorted(maps.Keys(licence.Texts)) {
			files = append(files, file(path.Join(into, licence.Module+"@"+licence.Version, name), licence.Texts[name], 0o444))
		}
	}
	return files
}
