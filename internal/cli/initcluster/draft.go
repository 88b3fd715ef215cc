package initcluster

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Draft is a cluster file as it was written.
type Draft struct {
	File cluster.File
	Text []byte
	// Guesses and Unknown are the comments of the file that say so.
	Guesses, Unknown []string
}

// Write makes a cluster file of the facts, and checks it as Load does.
func Write(f Facts) (Draft, error) {
	w := &writer{}
	w.comment(0, "Written by mlenv init from the cluster itself. Read what is marked with guess and unknown.")
	name := w.cluster(f)
	nodes := w.nodes(f)
	w.gpus(nodes)
	w.storage(f)
	w.network(f, nodes)
	w.resources(nodes)
	w.image(f)
	d := Draft{Text: []byte(w.text.String()), Guesses: w.guesses, Unknown: w.unknowns}
	var err error
	if d.File, err = cluster.Load(name+".yaml", d.Text); err != nil {
		return d, fmt.Errorf("checking the cluster file that was written: %w", err)
	}
	return d, nil
}

// writer writes YAML with comments: the library's encoder would not put them where they belong.
type writer struct {
	text              strings.Builder
	guesses, unknowns []string
}

// line writes a line at a depth.
func (w *writer) line(depth int, format string, args ...any) {
	fmt.Fprintf(&w.text, "%s%s\n", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
}

func (w *writer) section(name string) { fmt.Fprintf(&w.text, "\n%s:\n", name) }

func (w *writer) comment(depth int, format string, args ...any) {
	w.line(depth, "# %s", humanize.OneLine(fmt.Sprintf(format, args...), 500))
}

// guess comments on what follows it: what it was guessed from.
func (w *writer) guess(depth int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.guesses = append(w.guesses, text)
	w.comment(depth, "guess: %s", text)
}

// unknown comments on what could not be read.
func (w *writer) unknown(depth int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.unknowns = append(w.unknowns, text)
	w.comment(depth, "unknown: %s", text)
}

// set writes a key with a value, quoted where YAML would take it for something else.
func (w *writer) set(depth int, key, value string) {
	quoted, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // a string can be written
	}
	w.line(depth, "%s: %s", key, strings.TrimSpace(string(quoted)))
}

// plain is what a name of a cluster can be made of.
var plain = regexp.MustCompile(`[^a-z0-9-]+`)

// cluster returns the name.
func (w *writer) cluster(f Facts) string {
	w.line(0, "cluster:")
	name := f.Name
	if name == "" {
		host := strings.TrimPrefix(f.API, "api.")
		first, _, _ := strings.Cut(host, ".")
		if name = strings.Trim(plain.ReplaceAllString(strings.ToLower(first), "-"), "-"); name == "" || name[0] >= '0' && name[0] <= '9' {
			name = "my-cluster"
		}
		w.guess(1, "from the API server's name; mlenv init NAME says another")
	}
	w.set(1, "name", name)
	if f.APIGuess != "" {
		w.guess(1, "%s", f.APIGuess)
	}
	w.set(1, "api", f.API)
	if f.Namespace == "default" {
		w.guess(1, "the kubeconfig names no namespace: want one of your own (mlenv init --namespace)")
	}
	w.set(1, "namespace", f.Namespace)
	return name
}

func (w *writer) image(f Facts) {
	w.section("image")
	w.guess(1, "the newer of ml-dev-env's own images, which is built on the cluster; image.name names a finished one instead")
	if !f.OpenShift {
		w.comment(1, "This cluster is no OpenShift: where it has no build API, want image.name.")
	}
	w.set(1, "flavour", "pytorch-2.9-numpy2")
}
