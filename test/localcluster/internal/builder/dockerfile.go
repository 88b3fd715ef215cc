package builder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// instruction is one of a Dockerfile.
type instruction struct {
	// word is its name in upper case; rest what follows, in one line.
	word, rest string
	// first and last of its lines, counted from 0.
	first, last int
}

var (
	escapeDirective = regexp.MustCompile("^#[ \t]*escape[ \t]*=[ \t]*([\\\\`])[ \t]*$")
	hereDocument    = regexp.MustCompile(`<<-?(["']?)([A-Za-z_][A-Za-z0-9_]*)(["']?)`)
)

// parse finds the instructions of a Dockerfile.
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

// check finds what the parser refuses before anything is built.
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

// manageDockerfile writes a Dockerfile that the Build carries, and completes
// whichever there is by what the Build says.
func (j *job) manageDockerfile() error {
	if err := os.MkdirAll(j.contextDir(), 0o777); err != nil {
		return err
	}
	if inline := j.build.Spec.Source.Dockerfile; inline != nil {
		if err := os.WriteFile(filepath.Join(j.contextDir(), "Dockerfile"), []byte(*inline), 0o660); err != nil {
			return err
		}
	}
	content, err := os.ReadFile(j.dockerfile())
	if err != nil {
		return err
	}
	commit, err := os.ReadFile(filepath.Join(WorkDir, "commit"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	completed, err := j.complete(string(content), string(commit))
	if err != nil {
		return err
	}
	return os.WriteFile(j.dockerfile(), []byte(completed), 0o644)
}

// complete is the Dockerfile with the strategy's base and variables, and with
// the variables and labels by which an image says what it was built from.
func (j *job) complete(text, commit string) (string, error) {
	instructions, err := parse(text)
	if err != nil {
		return "", err
	}
	lines := strings.Split(text, "\n")
	docker := j.build.Spec.Strategy.DockerStrategy
	var froms []instruction
	for _, in := range instructions {
		if in.word == "FROM" {
			froms = append(froms, in)
		}
	}
	insert := map[int]string{} // after the line
	for i, from := range froms {
		image, flags, suffix := splitFrom(from.rest)
		if docker.From != nil && docker.From.Kind == "DockerImage" && i == len(froms)-1 {
			fmt.Fprintf(j.out, "Replaced Dockerfile FROM image %s\n", image)
			image = docker.From.Name
		}
		image = j.sourceImage(image)
		lines[from.first] = strings.Join(strings.Fields("FROM "+flags+" "+image+" "+suffix), " ")
		for l := from.first + 1; l <= from.last; l++ {
			lines[l] = "#"
		}
		if len(docker.Env) > 0 {
			insert[from.last] = keyValues("ENV", docker.Env)
		}
	}
	var out bytes.Buffer
	for i, line := range lines {
		fmt.Fprintln(&out, line)
		if added := insert[i]; added != "" {
			fmt.Fprintln(&out, added)
		}
	}
	fmt.Fprintln(&out, keyValues("ENV", j.facts(commit)))
	fmt.Fprintln(&out, keyValues("LABEL", j.labels(commit)))
	return out.String(), nil
}

// splitFrom takes a FROM instruction's arguments apart.
func splitFrom(rest string) (image, flags, suffix string) {
	words := strings.Fields(rest)
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		flags = strings.TrimSpace(flags + " " + words[0])
		words = words[1:]
	}
	if len(words) == 0 {
		return "", flags, ""
	}
	return words[0], flags, strings.Join(words[1:], " ")
}

// sourceImage is what one of the Build's source images replaces the name by.
func (j *job) sourceImage(image string) string {
	for _, source := range j.build.Spec.Source.Images {
		for _, as := range source.As {
			if as == image {
				return source.From.Name
			}
		}
	}
	return image
}

func (j *job) facts(commit string) []corev1.EnvVar {
	facts := []corev1.EnvVar{
		{Name: "OPENSHIFT_BUILD_NAME", Value: j.build.Name},
		{Name: "OPENSHIFT_BUILD_NAMESPACE", Value: j.build.Namespace},
	}
	if git := j.build.Spec.Source.Git; git != nil {
		facts = append(facts, corev1.EnvVar{Name: "OPENSHIFT_BUILD_SOURCE", Value: git.URI})
		if git.Ref != "" {
			facts = append(facts, corev1.EnvVar{Name: "OPENSHIFT_BUILD_REFERENCE", Value: git.Ref})
		}
		if commit != "" {
			facts = append(facts, corev1.EnvVar{Name: "OPENSHIFT_BUILD_COMMIT", Value: commit})
		}
	}
	return facts
}

func (j *job) labels(commit string) []corev1.EnvVar {
	var labels []corev1.EnvVar
	add := func(name, value string) {
		if value != "" {
			labels = append(labels, corev1.EnvVar{Name: name, Value: value})
		}
	}
	add("io.openshift.build.commit.id", commit)
	add("io.openshift.build.name", j.build.Name)
	add("io.openshift.build.namespace", j.build.Namespace)
	add("io.openshift.build.source-context-dir", j.build.Spec.Source.ContextDir)
	if git := j.build.Spec.Source.Git; git != nil {
		add("io.openshift.build.commit.ref", git.Ref)
		add("io.openshift.build.source-location", git.URI)
	}
	for _, l := range j.build.Spec.Output.ImageLabels {
		labels = append(labels, corev1.EnvVar{Name: l.Name, Value: l.Value})
	}
	return labels
}

// keyValues is an ENV or LABEL instruction.
func keyValues(word string, list []corev1.EnvVar) string {
	text := word
	for _, v := range list {
		text += fmt.Sprintf(" %s=%s", quoteKey(v.Name), quote(v.Value))
	}
	return text
}

func quoteKey(name string) string {
	if strings.ContainsAny(name, " \"'\\$") {
		return quote(name)
	}
	return name
}

// quote writes a value so that the Dockerfile gives it back as it is.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`).Replace(value) + `"`
}

// bases are the images that the Dockerfile builds on and that have to be
// pulled, in order, with the build arguments filled in.
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
			// Only those before the first FROM are known to a FROM.
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
			image, _, suffix := splitFrom(in.rest)
			image = os.Expand(strings.Trim(image, `"'`), func(name string) string { return expandArgument(name, values) })
			if words := strings.Fields(suffix); len(words) == 2 && strings.EqualFold(words[0], "AS") {
				stages[words[1]] = true
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

// expandArgument is the value of NAME, NAME:-default or NAME:+other.
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
