// SPDX-License-Identifier: Apache-2.0

package scc

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	securityv1 "github.com/openshift/api/security/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed stock.yaml
var stock []byte

// Stock returns the constraints that a new cluster has.
func Stock() ([]*securityv1.SecurityContextConstraints, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stock)))
	var all []*securityv1.SecurityContextConstraints
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := yaml.ToJSON(document)
		if err != nil {
			return nil, fmt.Errorf("reading the stock constraints: %w", err)
		}
		var c securityv1.SecurityContextConstraints
		strict := json.NewDecoder(bytes.NewReader(content))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&c); err != nil {
			return nil, fmt.Errorf("reading the stock constraints: %w", err)
		}
		all = append(all, &c)
	}
}
