// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/command"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	corev1 "k8s.io/api/core/v1"
)

// parse reads the instructions of a Dockerfile. Its errors have OpenShift's words.
func parse(text string) (*parser.Result, error) {
	parsed, err := parser.Parse(strings.NewReader(text))
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 && at.Locations[0][0].Start.Line > 0 && !strings.Contains(err.Error(), noInstructions) {
		return nil, fmt.Errorf("dockerfile parse error line %d: %w", at.Locations[0][0].Start.Line, err)
	}
	return parsed, err
}

// noInstructions is the parser's error about an empty file.
const noInstructions = "file with no instructions"

// manageDockerfile completes the Dockerfile with what the Build adds to it.
func (j *job) manageDockerfile() error {
	content, err := os.ReadFile(j.dockerfile())
	if err != nil {
		return err
	}
	completed, err := j.complete(string(content))
	if err != nil {
		return err
	}
	return os.WriteFile(j.dockerfile(), []byte(completed), 0o644)
}

// complete returns the Dockerfile with the strategy's variables in every stage, and with the variables and labels in
// which an image records its build.
func (j *job) complete(text string) (string, error) {
	parsed, err := parse(text)
	if err != nil {
		return "", err
	}
	variables := map[int]string{} // by the number of the preceding line, counted from 1
	dropped := map[int]bool{}
	for _, in := range parsed.AST.Children {
		// OpenShift writes only the instructions, without heredocs.
		from := in.EndLine + 1
		for _, doc := range in.Heredocs {
			from -= strings.Count(doc.Content, "\n") + 1
		}
		for line := from; line <= in.EndLine; line++ {
			dropped[line] = true
		}
		if env := j.build.Spec.Strategy.DockerStrategy.Env; len(env) > 0 && strings.EqualFold(in.Value, command.From) {
			variables[in.EndLine] = keyValues("ENV", env)
		}
	}
	var out bytes.Buffer
	for i, line := range strings.Split(text, "\n") {
		if !dropped[i+1] {
			fmt.Fprintln(&out, line)
		}
		if added := variables[i+1]; added != "" {
			fmt.Fprintln(&out, added)
		}
	}
	fmt.Fprintln(&out, keyValues("ENV", []corev1.EnvVar{
		{Name: "OPENSHIFT_BUILD_NAME", Value: j.build.Name}, {Name: "OPENSHIFT_BUILD_NAMESPACE", Value: j.build.Namespace},
	}))
	labels := []corev1.EnvVar{
		{Name: "io.openshift.build.name", Value: j.build.Name}, {Name: "io.openshift.build.namespace", Value: j.build.Namespace},
	}
	for _, label := range j.build.Spec.Output.ImageLabels {
		labels = append(labels, corev1.EnvVar{Name: label.Name, Value: label.Value})
	}
	fmt.Fprintln(&out, keyValues("LABEL", labels))
	return out.String(), nil
}

// keyValues returns an ENV or LABEL instruction.
func keyValues(word string, list []corev1.EnvVar) string {
	text := word
	for _, v := range list {
		// OpenShift quotes them for Go: buildah expands $NAME.
		text += fmt.Sprintf(" %q=%q", v.Name, v.Value)
	}
	return text
}

// bases returns the images that the Dockerfile builds on and that have to be pulled, in order, with the build arguments
// expanded.
func bases(text string, arguments []corev1.EnvVar) ([]string, error) {
	parsed, err := parse(text)
	if err != nil {
		return nil, err
	}
	given := map[string]string{}
	for _, a := range arguments {
		given[a.Name] = a.Value
	}
	lex := shell.NewLex(parsed.EscapeToken)
	var values []string // NAME=VALUE
	stages, seen := map[string]bool{}, map[string]bool{}
	var images []string
	any := false
	for _, in := range parsed.AST.Children {
		switch strings.ToLower(in.Value) {
		case command.Arg:
			// A FROM knows only the arguments before the first FROM.
			for word := in.Next; word != nil && !any; word = word.Next {
				name, value, _ := strings.Cut(word.Value, "=")
				if v, ok := given[name]; ok {
					value = v
				}
				values = append(values, name+"="+strings.Trim(value, `"'`))
			}
		case command.From:
			any = true
			if in.Next == nil {
				continue
			}
			image, _, err := lex.ProcessWord(in.Next.Value, shell.EnvsFromSlice(values))
			if err != nil {
				return nil, err
			}
			if as := in.Next.Next; as != nil && strings.EqualFold(as.Value, "AS") && as.Next != nil {
				stages[as.Next.Value] = true
			}
			if image == "scratch" || image == "" || stages[image] && !strings.ContainsAny(image, "/:@") || seen[image] {
				continue
			}
			seen[image] = true
			images = append(images, image)
		}
	}
	if !any {
		return nil, errors.New("no FROM image in Dockerfile")
	}
	return images, nil
}
