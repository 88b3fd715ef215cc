// SPDX-License-Identifier: Apache-2.0

package admin

import (
	_ "embed"
	"strings"
	"text/template"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// OwnSCC is the security context constraint that this package prints.
const OwnSCC = "mlenv-rdma"

const (
	iommuArgument = "iommu=pt"
	// separator begins a document in a stream of YAML.
	separator = "---\n"
)

// objectsFile has a template for the objects of each item.
//
//go:embed objects.yaml
var objectsFile string

func memlockName(pool string) string { return "99-" + pool + "-crio-memlock" }
func iommuName(pool string) string   { return "99-" + pool + "-iommu-passthrough" }

// manifests returns the objects of an item in YAML, with comments.
func (r Request) manifests(item string) string {
	var text strings.Builder
	err := template.Must(template.New("objects.yaml").Parse(objectsFile)).ExecuteTemplate(&text, item, map[string]any{
		"Namespace": r.Namespace, "ServiceAccount": r.ServiceAccount, "SCC": r.sccName(), "Drop": objects.RootsOwn(),
		"Pool": r.Pool, "Memlock": memlockName(r.Pool), "IOMMU": iommuName(r.Pool), "IOMMUArgument": iommuArgument,
	})
	if err != nil {
		panic(err) // the templates are part of the program
	}
	return strings.TrimPrefix(text.String(), "\n") + "\n"
}
