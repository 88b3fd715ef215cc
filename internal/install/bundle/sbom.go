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

// Product is something that is passed on: programs, by themselves or in an image.
type Product struct {
	// Name is what people see of it.
	Name string
	// Image is the digest of the image that holds the programs; empty where there is none.
	Image v1.Hash
	// Programs are files.
	Programs []string
}

// SBOM is the bill of materials of the products, as JSON of SPDX 2.3: what they
// are, what modules each program was linked from as it says itself, under which
// licences. The same products make the same bill. See
// https://spdx.github.io/spdx-spec/v2.3/.
func (s Source) SBOM(products []Product, licences []Licence) ([]byte, error) {
	bill := &spdxDocument{
		Version: "SPDX-2.3", DataLicence: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "ml-dev-env " + s.Version,
		// Not now: the bill would be another every time.
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
	// A name that no other document has, which its own text decides.
	bill.Namespace = fmt.Sprintf("%s/spdx/%s-%x", home, url.PathEscape(s.Version), sha256.Sum256(content))
	return indented(bill)
}

// changed is the time of the last change, and of UNIX where it is not known.
func (s Source) changed() time.Time {
	if s.Changed.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return s.Changed
}

func (s Source) addProduct(bill *spdxDocument, product Product) error {
	parent, relation := bill.ID, "DESCRIBES"
	if product.Image.Hex != "" {
		image := spdxPackage{
			Name: product.Name, ID: spdxID("image", product.Image.Hex), VersionInfo: s.Version, Download: noAssertion,
			Declared: projectLicence, Concluded: noAssertion, Copyright: noAssertion, Purpose: "CONTAINER",
			Checksums:  []spdxChecksum{{"SHA256", product.Image.Hex}},
			References: []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:oci/steps@" + url.PathEscape(product.Image.String())}},
		}
		bill.Packages = append(bill.Packages, image)
		bill.relate(parent, relation, image.ID)
		parent, relation = image.ID, "CONTAINS"
	}
	for _, file := range product.Programs {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		hash := fmt.Sprintf("%x", sha256.Sum256(content))
		program := spdxPackage{
			Name: filepath.Base(file), ID: spdxID("program", hash), VersionInfo: s.Version, Download: noAssertion,
			Declared: projectLicence, Concluded: noAssertion, Copyright: noAssertion, Purpose: "APPLICATION",
			Checksums: []spdxChecksum{{"SHA256", hash}},
		}
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
	return spdxPackage{
		Name: l.Module, ID: l.id(), VersionInfo: l.Version, Download: l.download(),
		Declared: l.SPDX, Concluded: noAssertion, Copyright: noAssertion, Purpose: "LIBRARY",
		References: []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + l.Module + "@" + url.PathEscape(l.Version)}},
	}
}

// download is where the module is to be had.
func (l Licence) download() string {
	switch l.Module {
	case module:
		return "git+" + home + ".git"
	case goLibrary:
		return "https://go.dev/dl/go" + l.Version + ".src.tar.gz"
	}
	return noAssertion
}

// notOfID is what may not be in an SPDX identifier.
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

// relate says it once: two programs of the same bytes are one.
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
