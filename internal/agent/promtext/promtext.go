// SPDX-License-Identifier: Apache-2.0

// Package promtext writes metrics in the text format that Prometheus reads, version 0.0.4. The libraries that write it would make the
// agent, which is copied into every node, larger by their Protocol Buffers.
package promtext

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ContentType is the media type of the format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Type is the type of a metric.
type Type string

const (
	// Gauge goes up and down.
	Gauge Type = "gauge"
	// Counter only grows, and begins again at 0 with the process.
	Counter Type = "counter"
)

// Metric is a metric with its samples, which differ in the values of their labels.
type Metric struct {
	Name    string
	Type    Type
	Help    string
	Samples []Sample
}

// Sample is one value of a metric.
type Sample struct {
	Value  float64
	Labels []Label
}

// Label is the name and the value of one label.
type Label struct{ Name, Value string }

// Add adds a sample; labels are names and values in turn.
func (m *Metric) Add(value float64, labels ...string) {
	s := Sample{Value: value}
	for i := 0; i+1 < len(labels); i += 2 {
		s.Labels = append(s.Labels, Label{labels[i], labels[i+1]})
	}
	m.Samples = append(m.Samples, s)
}

// Write writes the metrics that have samples.
func Write(w io.Writer, metrics []Metric) error {
	out := bufio.NewWriter(w)
	for _, m := range metrics {
		if len(m.Samples) == 0 {
			continue
		}
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", m.Name, escaper(false).Replace(m.Help), m.Name, m.Type)
		for _, s := range m.Samples {
			fmt.Fprintf(out, "%s%s %s\n", m.Name, labels(s.Labels), strconv.FormatFloat(s.Value, 'g', -1, 64))
		}
	}
	return out.Flush()
}

func labels(all []Label) string {
	if len(all) == 0 {
		return ""
	}
	var pairs []string
	for _, l := range all {
		pairs = append(pairs, l.Name+`="`+escaper(true).Replace(strings.ToValidUTF8(l.Value, "\uFFFD"))+`"`)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// escaper escapes a help or, with quotes, the value of a label.
func escaper(quotes bool) *strings.Replacer {
	pairs := []string{`\`, `\\`, "\n", `\n`}
	if quotes {
		pairs = append(pairs, `"`, `\"`)
	}
	return strings.NewReplacer(pairs...)
}
