// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// form is a row of a table in testdata.
type form struct {
	// at is its line in the file.
	at    int
	want  string
	lines []string
}

// readForms reads a table: each expectation, and indented below it the lines to which it applies.
func readForms(t *testing.T, name string) []form {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var forms []form
	for i, line := range strings.Split(string(content), "\n") {
		text, indented := strings.CutPrefix(line, "\t")
		switch {
		case indented:
			last := &forms[len(forms)-1]
			last.lines = append(last.lines, text)
		case line != "" && !strings.HasPrefix(line, "#"):
			forms = append(forms, form{at: i + 1, want: line})
		}
	}
	return forms
}

// read returns the summary of a log.
func read(t *testing.T, log string) Summary {
	t.Helper()
	r := NewReader()
	if _, err := r.Write([]byte(log)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return r.Summary()
}

func (f form) read(t *testing.T) Summary {
	t.Helper()
	return read(t, strings.Join(f.lines, "\n")+"\n")
}

func TestChannels(t *testing.T) {
	for _, form := range readForms(t, "channels.txt") {
		got := "none"
		for _, p := range form.read(t).Processes {
			for _, c := range p.Communicators {
				for _, route := range c.Routes {
					got = strings.ReplaceAll(fmt.Sprintf("rank %d %s %s device %d", c.Rank, route.Transport, route.Network, route.Device), "  ", " ")
				}
			}
		}
		if got != form.want {
			t.Errorf("channels.txt:%d: %s\n got %s\nwant %s", form.at, form.lines[0], got, form.want)
		}
	}
}

func TestFacts(t *testing.T) {
	for _, form := range readForms(t, "facts.txt") {
		var want, got Process
		decoder := json.NewDecoder(strings.NewReader(form.want))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&want); err != nil {
			t.Fatalf("facts.txt:%d: %v", form.at, err)
		}
		for _, p := range form.read(t).Processes {
			if p.Host != "node-0" || p.PID != 101 {
				t.Errorf("facts.txt:%d: process %s:%d, want node-0:101", form.at, p.Host, p.PID)
			}
			got = asRead(t, p)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Device{})); diff != "" {
			t.Errorf("facts.txt:%d: (-want +got)\n%s", form.at, diff)
		}
	}
}

// asRead returns a process as another program reads it from JSON, without its host and PID.
func asRead(t *testing.T, p Process) Process {
	t.Helper()
	p.Host, p.PID = "", 0
	content, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var result Process
	if err := json.Unmarshal(content, &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestFindings(t *testing.T) {
	for _, form := range readForms(t, "findings.txt") {
		var words []string
		for _, p := range form.read(t).Processes {
			for _, finding := range p.Findings {
				words = []string{string(finding.Reason)}
				if finding.Device != "" || finding.Peer != "" {
					words = append(words, dash(finding.Device))
				}
				if finding.Peer != "" {
					words = append(words, finding.Peer)
				}
				if !strings.Contains(strings.Join(form.lines, "\n"), finding.Seen) {
					t.Errorf("findings.txt:%d: the evidence %q is not in the lines", form.at, finding.Seen)
				}
			}
		}
		if got := dashNone(strings.Join(words, " ")); got != form.want {
			t.Errorf("findings.txt:%d: %s\n got %s\nwant %s", form.at, form.lines[len(form.lines)-1], got, form.want)
		}
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func dashNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
