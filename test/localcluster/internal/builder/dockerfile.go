package builder

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// instruction is an instruction of a Dockerfile.
type instruction struct {
	// word is its name in upper case, rest its arguments in one line.
	word, rest string
	// first and last are its lines, counted from 0; heredoc is the first of those of heredocs, 0 for none.
	first, last, heredoc int
}

var (
	escapeDirective = regexp.MustCompile("^#[ \t]*escape[ \t]*=[ \t]*([\\\\`])[ \t]*$")
	hereDocument    = regexp.MustCompile(`<<-?(["']?)([A-Za-z_][A-Za-z0-9_]*)(["']?)`)
)

// parse finds the instructions of a Dockerfile. BuildKit's parser is not used, because its module would raise the versions
// of what Kubernetes is compiled with.
func parse(text string) ([]instruction, error) {
	lines := strings.Split(text, "\n")
	escape := `\`
	if m := escapeDirective.FindStringSubmatch(strings.TrimSpace(lines[0])); m != nil {
		escape = m[1]
	}
	var found []instruction
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		in := instruction{first: i}
		joined := ""
		for {
			continued := strings.HasSuffix(line, escape)
			joined += strings.TrimSuffix(line, escape)
			if !continued || i+1 == len(lines) {
				break
			}
			// Comments and empty lines do not end a continued instruction.
			for i++; i+1 < len(lines) && (strings.TrimSpace(lines[i]) == "" || strings.HasPrefix(strings.TrimSpace(lines[i]), "#")); i++ {
			}
			line = strings.TrimRight(lines[i], " \t\r")
		}
		in.word, in.rest, _ = strings.Cut(strings.TrimSpace(joined), " ")
		in.word, in.rest = strings.ToUpper(in.word), strings.TrimSpace(in.rest)
		if in.word == "RUN" || in.word == "COPY" || in.word == "ADD" {
			for _, m := range hereDocument.FindAllStringSubmatch(in.rest, -1) {
				in.heredoc = cmp.Or(in.heredoc, i+1)
				for i++; i < len(lines) && strings.TrimLeft(strings.TrimRight(lines[i], "\r"), "\t") != m[2]; i++ {
				}
				if i >= len(lines) {
					return nil, fmt.Errorf("dockerfile parse error line %d: unterminated heredoc %s", in.first+1, m[2])
				}
			}
		}
		in.last = i
		if err := check(in); err != nil {
			return nil, err
		}
		found = append(found, in)
	}
	if len(found) == 0 {
		return nil, errors.New("file with no instructions")
	}
	return found, nil
}

// check refuses what OpenShift refuses before it builds anything.
func check(in instruction) error {
	if in.word != "ENV" && in.word != "LABEL" {
		return nil
	}
	words := strings.Fields(in.rest)
	if len(words) == 0 {
		return nil
	}
	if !strings.Contains(words[0], "=") && len(words) < 2 {
		return fmt.Errorf("dockerfile parse error line %d: %s must have two arguments", in.first+1, in.word)
	}
	return nil
}

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
	instructions, err := parse(text)
	if err != nil {
		return "", err
	}
	variables := map[int]string{} // by the line after which they belong
	dropped := map[int]bool{}
	for _, in := range instructions {
		for i := in.heredoc; i > 0 && i <= in.last; i++ {
			dropped[i] = true // OpenShift writes the instructions alone
		}
	}
	if env := j.build.Spec.Strategy.DockerStrategy.Env; len(env) > 0 {
		for _, in := range instructions {
			if in.word == "FROM" {
				variables[in.last] = keyValues("ENV", env)
			}
		}
	}
	var out bytes.Buffer
	for i, line := range strings.Split(text, "\n") {
		if !dropped[i] {
			fmt.Fprintln(&out, line)
		}
		if added := variables[i]; added != "" {
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
	instructions, err := parse(text)
	if err != nil {
		return nil, err
	}
	given, values := map[string]string{}, map[string]string{}
	for _, a := range arguments {
		given[a.Name] = a.Value
	}
	stages, seen := map[string]bool{}, map[string]bool{}
	var images []string
	any := false
	for _, in := range instructions {
		switch in.word {
		case "ARG":
			// A FROM knows only the arguments before the first FROM.
			if any {
				continue
			}
			for _, word := range strings.Fields(in.rest) {
				name, value, _ := strings.Cut(word, "=")
				if v, ok := given[name]; ok {
					value = v
				}
				values[name] = strings.Trim(value, `"'`)
			}
		case "FROM":
			any = true
			words := slices.DeleteFunc(strings.Fields(in.rest), func(word string) bool { return strings.HasPrefix(word, "--") })
			if len(words) == 0 {
				continue
			}
			image := os.Expand(strings.Trim(words[0], `"'`), func(name string) string { return expandArgument(name, values) })
			if len(words) == 3 && strings.EqualFold(words[1], "AS") {
				stages[words[2]] = true
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

// expandArgument returns the value of NAME, NAME:-default or NAME:+other.
func expandArgument(expression string, values map[string]string) string {
	if name, fallback, ok := strings.Cut(expression, ":-"); ok {
		if values[name] != "" {
			return values[name]
		}
		return fallback
	}
	if name, other, ok := strings.Cut(expression, ":+"); ok {
		if values[name] != "" {
			return other
		}
		return ""
	}
	return values[expression]
}
