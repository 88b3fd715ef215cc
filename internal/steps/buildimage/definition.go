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

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

const (
	dockerfileName = "Dockerfile"
	// common is the folder beside the flavours whose files lie in each one's context.
	common = "common"
)

// Definition is what an image is built from: a folder with a Dockerfile.
type Definition struct {
	// Flavour is the image's tag.
	Flavour string
	// Context is the folder, all of which is sent to the build.
	Context fs.FS

	dockerfile []byte
	stages     []instructions.Stage
	// global are the ARGs in front of the first FROM, which alone FROM sees.
	global []instructions.ArgCommand
}

// Flavours are the folders that have a Dockerfile, sorted.
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
		for _, name := range known {
			if humanize.Distance(name, flavour) <= len(name)/3 {
				hint = fmt.Sprintf("did you mean %s? ", name)
			}
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

// layers are folders seen as one. Of files of one name the first layer's counts.
type layers []fs.FS

// Open opens a file, or a folder as the first layer that has it does.
func (l layers) Open(name string) (file fs.File, err error) {
	for _, layer := range l {
		if file, err = layer.Open(name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return file, err
}

// ReadDir lists what the layers have in a folder, sorted by name.
func (l layers) ReadDir(name string) (entries []fs.DirEntry, err error) {
	found := false
	for _, layer := range l {
		more, err := fs.ReadDir(layer, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = true
		entries = append(entries, more...)
	}
	if !found {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	byName := func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) }
	slices.SortStableFunc(entries, byName)
	return slices.CompactFunc(entries, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() }), nil
}

// ReadDefinition reads the Dockerfile of a folder. Errors: InvalidInput where
// there is none, DockerfileInvalid with the line.
func ReadDefinition(flavour string, context fs.FS) (*Definition, error) {
	d := &Definition{Flavour: flavour, Context: context}
	var err error
	if d.dockerfile, err = fs.ReadFile(context, dockerfileName); err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading what to build: %w: want a folder with a Dockerfile", err)
	}
	parsed, err := parser.Parse(bytes.NewReader(d.dockerfile))
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

// located puts the line in front of a parser's error.
func located(err error) error {
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		return fmt.Errorf("line %d: %w", at.Locations[0][0].Start.Line, err)
	}
	return err
}

// Args are the names of the build arguments that the Dockerfile declares.
func (d *Definition) Args() []string {
	declared := map[string]bool{}
	add := func(command instructions.ArgCommand) {
		for _, arg := range command.Args {
			declared[arg.Key] = true
		}
	}
	for _, command := range d.global {
		add(command)
	}
	for _, stage := range d.stages {
		for _, command := range stage.Commands {
			if arg, ok := command.(*instructions.ArgCommand); ok {
				add(*arg)
			}
		}
	}
	return slices.Sorted(maps.Keys(declared))
}

// Bases are the images that the Dockerfile starts from, as its FROMs name them
// with these build arguments. Stages and scratch are not among them.
func (d *Definition) Bases(args []Arg) ([]string, error) {
	lex := shell.NewLex('\\')
	values := map[string]string{}
	for _, command := range d.global {
		for _, arg := range command.Args {
			value := arg.ValueString()
			if i := slices.IndexFunc(args, func(a Arg) bool { return a.Name == arg.Key }); i >= 0 {
				value = args[i].Value
			}
			values[arg.Key] = value
		}
	}
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, name+"="+value)
	}
	known := map[string]bool{"scratch": true}
	var bases []string
	for _, stage := range d.stages {
		base, _, err := lex.ProcessWord(stage.BaseName, shell.EnvsFromSlice(pairs))
		if err == nil && base == "" {
			err = errors.New("an ARG of it has no value")
		}
		if err != nil {
			return nil, fail.Becausef(fail.DockerfileInvalid, "reading the Dockerfile of %s: FROM %s names no image: %w", d.Flavour, stage.BaseName, err)
		}
		if !known[base] && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
		known[stage.Name] = true
	}
	return bases, nil
}

// Arg is a build argument or a variable of the image.
type Arg struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// parseArgs reads KEY=VALUE; of the same key the last one counts.
func parseArgs(flag string, texts []string) ([]Arg, error) {
	values := map[string]string{}
	var problems []error
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \t\n$") {
			problems = append(problems, fmt.Errorf("%s %q: want KEY=VALUE", flag, text))
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
