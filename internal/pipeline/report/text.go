package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// What is shown of lists and texts, so that a large receipt stays a page.
const (
	mostNodes    = 64
	mostRanks    = 1024
	mostTails    = 8
	mostLines    = 60
	mostLine     = 500
	mostPhases   = 40
	mostFindings = 20
	mostRails    = 64
	mostSettings = 100
	mostText     = 4000
)

// first are at most so many of a list, with a sentence about the others.
func first[T any](list []T, most int, what string) (kept []T, more string) {
	if len(list) <= most {
		return list, ""
	}
	return list[:most], fmt.Sprintf("%d more %s are in the receipt.", len(list)-most, what)
}

// readable is the receipt with every text in it as people can read it: without the control
// characters that colour a terminal, and without those that turn the direction of text. Its
// pictures are left out, and so is the folder of the tree in paths.
func readable(r receipt.Receipt) (result receipt.Receipt, err error) {
	encoded, err := json.Marshal(r)
	if err != nil {
		return result, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return result, fmt.Errorf("reading the receipt of %s: %w", r.Run, err)
	}
	if encoded, err = json.Marshal(each(tree, func(text string) string {
		if r.Tree != "" {
			// People know the files of the repository by their paths in it.
			text = strings.ReplaceAll(text, agent.Trees+"/"+r.Tree+"/", "")
		}
		return plainText(text)
	})); err != nil {
		return result, fmt.Errorf("encoding the receipt of %s: %w", r.Run, err)
	}
	if err := json.Unmarshal(encoded, &result); err != nil {
		return result, fmt.Errorf("reading the receipt of %s: %w", r.Run, err)
	}
	return result, nil
}

// each is a JSON value with every text in it changed, names too.
func each(value any, change func(string) string) any {
	switch v := value.(type) {
	case map[string]any:
		changed := map[string]any{}
		for name, inner := range v {
			changed[change(name)] = each(inner, change)
		}
		return changed
	case []any:
		for i := range v {
			v[i] = each(v[i], change)
		}
	case string:
		return change(v)
	}
	return value
}

func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, escapes.ReplaceAllString(text, ""))
}

// escapes are those that a terminal obeys, as "\x1b[31m".
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// cut is at most so many letters of a text.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// lines are the last ones, none of them too long.
func lines(all []string) string {
	var b strings.Builder
	if left := len(all) - mostLines; left > 0 {
		fmt.Fprintf(&b, "(%d lines before)\n", left)
		all = all[left:]
	}
	for _, line := range all {
		b.WriteString(cut(line, mostLine) + "\n")
	}
	return b.String()
}
