package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Product is something that a release publishes: programs, alone or in an image.
type Product struct {
	Name string
	// Image is the digest of the image that contains the programs, if there is one.
	Image v1.Hash
	// Tools are programs of others in the image.
	Tools    []Licence
	Programs []string
}

// SBOM is the bill of materials of the products as SPDX 2.3 JSON (https://spdx.github.io/spdx-spec/v2.3/): the modules
// that each program was linked from, by its build information, and their licences. It is reproducible.
func (s Source) SBOM(products []Product, licences []Licence) ([]byte, error) {
	bill := &spdxDocument{
		Version: "SPDX-2.3", DataLicence: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "ml-dev-env " + s.Version,
		// Not the current time, because the bill is reproducible.
		Creation: spdxCreation{Created: s.changed().Format(time.RFC3339), Creators: []string{"Tool: mlenv-" + s.Version}},
	}
	for _, licence := range licences {
		bill.Packages = append(bill.Packages, licence.spdx())
	}
	for _, product := range products {
		if err := s.addProduct(bill, product); err != nil {
			return nil, fmt.Errorf("writing the bill of materials of %s: %w", product.Name, err)
		}
	}
	content, err := indented(bill)
	if err != nil {
		return nil, err
	}
	// A name that no other document has, derived from the text.
	bill.Namespace = fmt.Sprintf("%s/spdx/%s-%x", home, url.PathEscape(s.Version), sha256.Sum256(content))
	return indented(bill)
}

func (s Source) changed() time.Time {
	if s.Changed.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return s.Changed
}

func (s Source) addProduct(bill *spdxDocument, product Product) error {
	parent, relation := bill.ID, "DESCRIBES"
	if product.Image.Hex != "" {
		image := newPackage(product.Name, spdxID("image", product.Image.Hex), s.Version, projectLicence, "CONTAINER")
		image.Checksums = []spdxChecksum{{"SHA256", product.Image.Hex}}
		image.References = []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:oci/steps@" + url.PathEscape(product.Image.String())}}
		bill.Packages = append(bill.Packages, image)
		bill.relate(parent, relation, image.ID)
		parent, relation = image.ID, "CONTAINS"
		for _, tool := range product.Tools {
			bill.relate(parent, relation, tool.id())
		}
	}
	for _, file := range product.Programs {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		hash := fmt.Sprintf("%x", sha256.Sum256(content))
		program := newPackage(filepath.Base(file), spdxID("program", hash), s.Version, projectLicence, "APPLICATION")
		program.Checksums = []spdxChecksum{{"SHA256", hash}}
		bill.Packages = append(bill.Packages, program)
		bill.relate(parent, relation, program.ID)
		linked, err := linkedModules(file)
		if err != nil {
			return err
		}
		for _, each := range linked {
			if each.Module == module {
				each.Version = s.Version
			}
			bill.relate(program.ID, "DEPENDS_ON", each.id())
		}
	}
	return nil
}

func (l Licence) id() string { return spdxID("module", l.Module, l.Version) }

func (l Licence) spdx() spdxPackage {
	library := newPackage(l.Module, l.id(), l.Version, l.SPDX, "LIBRARY")
	library.References = []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + l.Module + "@" + url.PathEscape(l.Version)}}
	switch l.Module {
	case module:
		library.Download = "git+" + home + ".git"
	case spyName:
		library.References[0].Locator, library.Purpose = "pkg:pypi/"+spyName+"@"+l.Version, "APPLICATION"
		library.Download = "https://pypi.org/project/" + spyName + "/" + l.Version + "/"
	case goLibrary:
		library.Download = "https://go.dev/dl/go" + l.Version + ".src.tar.gz"
	}
	return library
}

func newPackage(name, id, version, licence, purpose string) spdxPackage {
	return spdxPackage{
		Name: name, ID: id, VersionInfo: version, Download: noAssertion,
		Declared: licence, Concluded: noAssertion, Copyright: noAssertion, Purpose: purpose,
	}
}

var notOfID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func spdxID(kind string, parts ...string) string {
	id := "SPDXRef-" + kind
	for _, part := range parts {
		id += "-" + notOfID.ReplaceAllString(part, "-")
	}
	return id
}

type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	DataLicence   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name        string          `json:"name"`
	ID          string          `json:"SPDXID"`
	VersionInfo string          `json:"versionInfo,omitempty"`
	Download    string          `json:"downloadLocation"`
	Analysed    bool            `json:"filesAnalyzed"`
	Declared    string          `json:"licenseDeclared"`
	Concluded   string          `json:"licenseConcluded"`
	Copyright   string          `json:"copyrightText"`
	Purpose     string          `json:"primaryPackagePurpose,omitempty"`
	Checksums   []spdxChecksum  `json:"checksums,omitempty"`
	References  []spdxReference `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// relate adds a relationship once: two programs with the same bytes are one.
func (d *spdxDocument) relate(from, relation, to string) {
	if r := (spdxRelationship{from, relation, to}); !slices.Contains(d.Relationships, r) {
		d.Relationships = append(d.Relationships, r)
	}
}

func indented(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return out.Bytes(), err
}
