// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

const (
	dockerfileName = "Dockerfile"
	// common is the folder whose files are in the context of every flavour.
	common = "common"
)

// Definition is a folder with a Dockerfile.
type Definition struct {
	// Flavour is the image's tag.
	Flavour string
	// Context is the folder, which is sent to the build.
	Context fs.FS

	dockerfile []byte
	stages     []instructions.Stage
	// global are the ARGs before the first FROM; FROM sees no others.
	global []instructions.ArgCommand
}

// Flavours returns the folders that have a Dockerfile, sorted.
func Flavours(images fs.FS) ([]string, error) {
	found, err := fs.Glob(images, "*/"+dockerfileName)
	for i := range found {
		found[i] = path.Dir(found[i])
	}
	return found, err
}

// FindFlavour reads the definition of one of the flavours.
func FindFlavour(images fs.FS, flavour string) (*Definition, error) {
	known, err := Flavours(images)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(known, flavour) {
		hint := ""
		if near := humanize.Nearest(flavour, known); near != "" {
			hint = fmt.Sprintf("did you mean %s? ", near)
		}
		return nil, fail.Becausef(fail.InvalidInput, "looking for flavour %q: %sthere are %s", flavour, hint, strings.Join(known, ", "))
	}
	var context layers
	for _, folder := range []string{flavour, common} {
		layer, err := fs.Sub(images, folder)
		if err != nil {
			return nil, err
		}
		context = append(context, layer)
	}
	return ReadDefinition(flavour, context)
}

// layers present several folders as one. The first layer that has a file wins.
type layers []fs.FS

// Open implements fs.FS.
func (l layers) Open(name string) (file fs.File, err error) {
	for _, layer := range l {
		if file, err = layer.Open(name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return file, err
}

// ReadDir implements fs.ReadDirFS.
func (l layers) ReadDir(name string) (entries []fs.DirEntry, err error) {
	for _, layer := range l {
		more, err := fs.ReadDir(layer, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		entries = append(entries, more...)
	}
	byName := func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) }
	slices.SortStableFunc(entries, byName)
	return slices.CompactFunc(entries, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() }), nil
}

// ReadDefinition reads the Dockerfile of a folder. Errors: InvalidInput without a Dockerfile, DockerfileInvalid with the
// line.
func ReadDefinition(flavour string, context fs.FS) (*Definition, error) {
	d := &Definition{Flavour: flavour, Context: context}
	var err error
	if d.dockerfile, err = fs.ReadFile(context, dockerfileName); err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to build: %w: want a folder with a Dockerfile", err)
	}
	parsed, err := parser.Parse(bytes.NewReader(d.dockerfile))
	if err == nil {
		err = withoutUnsupported(parsed.AST)
	}
	if err == nil {
		d.stages, d.global, err = instructions.Parse(parsed.AST, nil)
	}
	if err != nil {
		return nil, fail.Advise(fail.Becausef(fail.DockerfileInvalid, "reading the Dockerfile of %s: %w", flavour, located(err)),
			"correct the Dockerfile; nothing was built")
	}
	if len(d.stages) == 0 {
		return nil, fail.Becausef(fail.DockerfileInvalid, "reading the Dockerfile of %s: it has no FROM", flavour)
	}
	return d, nil
}

// unsupported are flags that no release of OpenShift's builder carries out, by their instruction, each with what to write instead.
// The builder has buildah of its release: 1.26 (OpenShift 4.12) to 1.39 (4.22) were read.
var unsupported = map[string]map[string]string{
	"COPY": {"--link": "COPY without it, which copies the same files", "--parents": "a COPY for each folder, with its destination"},
	"ADD":  {"--link": "ADD without it, which adds the same files", "--keep-git-dir": "RUN git clone", "--unpack": "ADD or COPY without it"},
	"RUN":  {"--security": "RUN without it", "--device": "RUN without it"},
}

// withoutUnsupported refuses what OpenShift's builder does not read, such as heredocs, or does not carry out.
func withoutUnsupported(dockerfile *parser.Node) error {
	const builds = "OpenShift's builds do not support"
	for _, node := range dockerfile.Children {
		if len(node.Heredocs) > 0 {
			return fmt.Errorf("line %d: a heredoc (<<%s): %s heredocs: want a file of the folder, or && between commands", node.StartLine,
				node.Heredocs[0].Name, builds)
		}
		instruction := node
		if strings.EqualFold(node.Value, "ONBUILD") && node.Next != nil && len(node.Next.Children) > 0 {
			instruction = node.Next.Children[0]
		}
		name := strings.ToUpper(instruction.Value)
		for _, flag := range instruction.Flags {
			flag, value, _ := strings.Cut(flag, "=")
			if instead := unsupported[name][flag]; instead != "" && value != "false" {
				return fmt.Errorf("line %d: %s %s: %s it: want %s", node.StartLine, name, flag, builds, instead)
			}
		}
	}
	return nil
}

func located(err error) error {
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		return fmt.Errorf("line %d: %w", at.Locations[0][0].Start.Line, err)
	}
	return err
}

// ArgNames returns the names of the build arguments that the Dockerfile declares.
func (d *Definition) ArgNames() []string {
	all := slices.Clone(d.global)
	for _, stage := range d.stages {
		for _, command := range stage.Commands {
			if arg, ok := command.(*instructions.ArgCommand); ok {
				all = append(all, *arg)
			}
		}
	}
	var names []string
	for _, command := range all {
		for _, arg := range command.Args {
			names = append(names, arg.Key)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// BaseImages returns the images that the FROMs name with these build arguments, without stages and scratch.
func (d *Definition) BaseImages(args []Arg) ([]string, error) {
	all, err := d.bases(args)
	var bases []string
	for _, base := range all {
		if base != "" && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	}
	return bases, err
}

// bases returns the image of each stage, "" for scratch and for an earlier stage.
func (d *Definition) bases(args []Arg) ([]string, error) {
	lex := shell.NewLex('\\')
	var values []string
	for _, command := range d.global {
		for _, arg := range command.Args {
			// A default may have quotes, and name earlier ARGs.
			value, _, err := lex.ProcessWord(arg.ValueString(), shell.EnvsFromSlice(values))
			if err != nil {
				return nil, fail.Becausef(fail.DockerfileInvalid, "reading the Dockerfile of %s: ARG %s: %w", d.Flavour, arg.Key, err)
			}
			if i := slices.IndexFunc(args, func(a Arg) bool { return a.Name == arg.Key }); i >= 0 {
				value = args[i].Value
			}
			values = append(values, arg.Key+"="+value)
		}
	}
	known := map[string]bool{"scratch": true}
	var bases []string
	for _, stage := range d.stages {
		base, _, err := lex.ProcessWord(stage.BaseName, shell.EnvsFromSlice(values))
		if err == nil && base == "" {
			err = errors.New("one of its ARGs has no value")
		}
		if err != nil {
			return nil, fail.Becausef(fail.DockerfileInvalid, "reading the Dockerfile of %s: FROM %s names no image: %w", d.Flavour, stage.BaseName,
				err)
		}
		if known[base] {
			base = ""
		}
		bases = append(bases, base)
		known[nameOf(stage)] = true
	}
	return bases, nil
}

// pinned returns the Dockerfile with its bases by digest, so that the build pulls what its fingerprint names, even if a tag
// moves meanwhile. The tag goes, because OpenShift's builder refuses a name with both. A base of unknown digest stays.
func (d *Definition) pinned(in inputs) ([]byte, error) {
	bases, err := d.bases(in.BuildArgs)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(d.dockerfile), "\n")
	for i, stage := range d.stages {
		digest := in.Bases[bases[i]]
		if digest == "" {
			continue
		}
		from := "FROM "
		if stage.Platform != "" {
			from += "--platform=" + stage.Platform + " "
		}
		from += untagged(bases[i]) + "@" + digest
		if name := nameOf(stage); name != "" {
			from += " AS " + name
		}
		for _, at := range stage.Location { // one for each line
			lines[at.Start.Line-1] = ""
		}
		lines[stage.Location[0].Start.Line-1] = from + "\n"
	}
	return []byte(strings.Join(lines, "")), nil
}

// nameOf returns the name of a stage as the Dockerfile spells it, "" for none. The parser has it in small letters, and OpenShift's builder
// compares the letters.
func nameOf(stage instructions.Stage) string {
	words := strings.Fields(stage.SourceCode)
	if last := len(words) - 1; last > 0 && strings.EqualFold(words[last], stage.Name) {
		return words[last]
	}
	return stage.Name
}

func untagged(image string) string {
	image, _, _ = strings.Cut(image, "@")
	// A colon before the last slash belongs to a port.
	if at := strings.LastIndex(image, ":"); at > strings.LastIndex(image, "/") {
		image = image[:at]
	}
	return image
}

// Arg is a build argument or a variable of the image.
type Arg struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// parseEnv reads the variables of --env. OpenShift expands $(NAME) in them, and then writes them into the Dockerfile, where
// $NAME is expanded. How its releases treat the other characters differs, and no way of escaping works on all.
func parseEnv(texts []string) ([]Arg, error) {
	variables, err := parseArgs("--env", texts)
	changed := func(r rune) bool { return strings.ContainsRune(`$&<>\`, r) || !unicode.IsPrint(r) }
	problems := []error{err}
	for _, variable := range variables {
		if i := strings.IndexFunc(variable.Value, changed); i >= 0 {
			r, _ := utf8.DecodeRuneInString(variable.Value[i:])
			problems = append(problems, fmt.Errorf("--env %s=%q: OpenShift's builds change the sign %q in variables: want an ENV in your own "+
				"Dockerfile (--folder), or a value without it", variable.Name, variable.Value, r))
		}
	}
	return variables, errors.Join(problems...)
}

// parseArgs reads KEY=VALUE. The last value of a key counts.
func parseArgs(flag string, texts []string) ([]Arg, error) {
	values := map[string]string{}
	var problems []error
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || len(validation.IsEnvVarName(name)) > 0 || strings.HasPrefix(name, "-") || strings.ContainsRune(value, 0) {
			problems = append(problems, fmt.Errorf("%s %q: want KEY=VALUE, with letters, digits, _, . and - in KEY", flag, text))
			continue
		}
		values[name] = value
	}
	var args []Arg
	for _, name := range slices.Sorted(maps.Keys(values)) {
		args = append(args, Arg{name, values[name]})
	}
	return args, errors.Join(problems...)
}
