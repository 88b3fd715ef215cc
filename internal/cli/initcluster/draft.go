// SPDX-License-Identifier: Apache-2.0

package initcluster

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Draft is a cluster file with its comments.
type Draft struct {
	File             cluster.File
	Text             []byte
	Guesses, Unknown []string
}

// Write writes a cluster file from the facts, and checks it.
func Write(f Facts) (Draft, error) {
	w := &writer{}
	w.comment(0, "Written by mlenv init from the cluster. Check what is marked with guess and unknown.")
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

// writer writes YAML with comments, which the library's encoder does not support.
type writer struct {
	text              strings.Builder
	guesses, unknowns []string
}

func (w *writer) line(depth int, format string, args ...any) {
	fmt.Fprintf(&w.text, "%s%s\n", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
}

func (w *writer) section(name string) { fmt.Fprintf(&w.text, "\n%s:\n", name) }

func (w *writer) comment(depth int, format string, args ...any) {
	w.line(depth, "# %s", humanize.OneLine(fmt.Sprintf(format, args...), 500))
}

// guess writes a comment about the origin of the next value. It begins with the value's key, in full: the report of mlenv
// init has no sections.
func (w *writer) guess(depth int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.guesses = append(w.guesses, text)
	w.comment(depth, "guess: %s", text)
}

func (w *writer) unknown(depth int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.unknowns = append(w.unknowns, text)
	w.comment(depth, "unknown: %s", text)
}

// set writes a key and a string, quoted if YAML needs that.
func (w *writer) set(depth int, key, value string) {
	quoted, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // a string can be written
	}
	w.line(depth, "%s: %s", key, strings.TrimSpace(string(quoted)))
}

// notInName matches what the name of a cluster cannot contain.
var notInName = regexp.MustCompile(`[^a-z0-9-]+`)

func (w *writer) cluster(f Facts) string {
	w.line(0, "cluster:")
	name := f.Name
	if name == "" {
		host := strings.TrimPrefix(f.API, "api.")
		first, _, _ := strings.Cut(host, ".")
		if name = strings.Trim(notInName.ReplaceAllString(strings.ToLower(first), "-"), "-"); name == "" || name[0] >= '0' && name[0] <= '9' {
			name = "my-cluster"
		}
		w.guess(1, "cluster.name: from the API server's name; mlenv init NAME sets another")
	}
	w.set(1, "name", name)
	if f.APIGuess != "" {
		w.guess(1, "%s", f.APIGuess)
	}
	w.set(1, "api", f.API)
	if f.Namespace == "default" {
		w.guess(1, "cluster.namespace: the kubeconfig has none; use one of your own (mlenv init --namespace)")
	}
	w.set(1, "namespace", f.Namespace)
	return name
}

func (w *writer) image(f Facts) {
	w.section("image")
	w.guess(1, "image.flavour: the newer of ml-dev-env's images, which is built on the cluster; image.name names an existing image instead")
	if !f.OpenShift {
		w.comment(1, "This cluster is not OpenShift; without its build API, image.name is needed.")
	}
	w.set(1, "flavour", "pytorch-2.9-numpy2")
}
