// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const example = `package example

import "fmt"

const mostNames = 3

type pair struct {
	A int ` + "`json:\"a,omitempty\"`" + `
}

func find(names []string, want string) (int, error) {
	log("looking")
	fmt.Println("looking")
	for i, name := range names {
		if name == want && i < mostNames {
			return i, nil
		}
	}
	return -1, fmt.Errorf("no %s", want)
}

func log(string) {}
`

func TestMutants(t *testing.T) {
	all, err := mutantsIn("example", "example.go", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, m.String())
		if _, err := parser.ParseFile(token.NewFileSet(), "", m.apply([]byte(example)), 0); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
	want := []string{
		"example.go:5: constant: 3 -> 4",
		"example.go:12: early return: nothing -> return *new(int), *new(error);",
		"example.go:13: early return: nothing -> return *new(int), *new(error);",
		"example.go:14: early return: nothing -> return *new(int), *new(error);",
		"example.go:12: dropped call: log(\"looking\") -> nothing",
		"example.go:15: early return: nothing -> return *new(int), *new(error);",
		"example.go:15: comparison: && -> ||",
		"example.go:15: comparison: == -> !=",
		"example.go:15: comparison: < -> >=",
		"example.go:19: constant: 1 -> 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The same seed chooses the same lines, another one others, and the kinds take turns.
func TestSeed(t *testing.T) {
	all, err := mutantsIn("example", "example.go", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	first, again := shuffled(all, 7), shuffled(all, 7)
	if !slices.Equal(first, again) || len(first) != len(all) {
		t.Errorf("got %d and %d of %d changes, want the same ones", len(first), len(again), len(all))
	}
	if first[0].Kind != comparison || first[1].Kind != constant || first[2].Kind != droppedCall || first[3].Kind != earlyReturn {
		t.Errorf("the first are %v", first[:4])
	}
	others := 0
	for seed := range uint64(20) {
		if !slices.Equal(shuffled(all, seed), first) {
			others++
		}
	}
	if others == 0 {
		t.Error("all seeds choose the same")
	}
}

// A call that is stopped continues later.
func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bin", "mutants.jsonl")
	r := result{mutant: mutant{File: "a.go", From: 3, New: "x"}, Verdict: survived}
	if err := writeResult(path, r); err != nil {
		t.Fatal(err)
	}
	known, err := readResults(path)
	if err != nil || known[r.id()] != r {
		t.Errorf("got %v, %v", known, err)
	}
	if known, err := readResults(filepath.Join(t.TempDir(), "none")); err != nil || len(known) > 0 {
		t.Errorf("got %v, %v; want nothing", known, err)
	}
}
