// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// halves returns a landing of a folder with two files, of each of which a part is there.
func halves(t *testing.T) (from, to string, m Manifest) {
	t.Helper()
	from, to = t.TempDir(), t.TempDir()
	random := rand.NewChaCha8([32]byte{3})
	for _, name := range []string{"a", longName} {
		content := make([]byte, 3*pageBlock)
		_, _ = random.Read(content)
		part := filepath.Join(to, Partial+string(digestOf(content)))
		whole := filepath.Join(from, name)
		if err := errors.Join(os.WriteFile(whole, content, 0o600), os.WriteFile(part, content[:2*pageBlock+1], 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := Scan(t.Context(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	return from, to, m
}

func digestOf(content []byte) Digest {
	sum := sha256.New()
	sum.Write(content)
	return DigestOf(sum)
}

func landingOf(t *testing.T, to string, m Manifest) *Landing {
	t.Helper()
	l, err := NewLandingOf(to, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// rest sends what a landing misses of the folder.
func rest(t *testing.T, l *Landing, from string, m Manifest) error {
	t.Helper()
	var stream bytes.Buffer
	if err := WriteRest(t.Context(), &stream, from, m, l.Missing(), l.From()); err != nil {
		t.Fatal(err)
	}
	return ReadRest(t.Context(), &stream, m.Sizes(), l.Begun, l.Put)
}

// Programs that read only a block each describe the parts together, and another one continues behind them.
func TestPartsAreReadInSteps(t *testing.T) {
	from, to, m := halves(t)
	var parts map[Digest]Part
	steps := 0
	for all := false; !all; steps++ {
		var err error
		if parts, all, err = landingOf(t, to, m).Parts(t.Context(), parts, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
		if steps == 10 {
			t.Fatal("it does not end")
		}
	}
	if steps != 5 { // the last block of one part and the first of the next are one step
		t.Errorf("%d steps for two parts of three blocks, want 5", steps)
	}
	l := landingOf(t, to, m)
	l.ContinueAt(parts)
	for content, size := range l.From() {
		if size != 2*pageBlock+1 {
			t.Errorf("content %s continues at %d", content, size)
		}
	}
	if err := rest(t, l, from, m); err != nil || len(l.From()) != 0 || l.Landed() != 2 {
		t.Errorf("%d files landed, %v", l.Landed(), err)
	}
	if got, err := Scan(t.Context(), to, nil); err != nil || got.Hash() != m.Hash() {
		t.Errorf("got %v, %v", got, err)
	}
}

// A part that became shorter is not filled with zeros.
func TestPartIsGone(t *testing.T) {
	from, to, m := halves(t)
	parts, _, err := landingOf(t, to, m).Parts(t.Context(), nil, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(to, Partial+string(m.Entries[0].Content)), 1); err != nil {
		t.Fatal(err)
	}
	l := landingOf(t, to, m)
	l.ContinueAt(parts)
	if err := rest(t, l, from, m); !errors.Is(err, errShort) {
		t.Errorf("got %v, want %v", err, errShort)
	}
	if err := rest(t, l, from, m); err != nil { // from the first byte
		t.Error(err)
	}
	if got, err := Scan(t.Context(), to, nil); err != nil || got.Hash() != m.Hash() {
		t.Errorf("got %v, %v", got, err)
	}
}

// What another program sends as the state of a part leads at most to a damaged content.
func TestPartsOfOthers(t *testing.T) {
	from, to, m := halves(t)
	content := m.Entries[0].Content
	good, _, err := landingOf(t, to, m).Parts(t.Context(), nil, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	other := good[m.Entries[1].Content]
	for _, tc := range []struct { // the first meets the part that halves has left
		name string
		part Part
	}{{"of another content", other}, {"no state", Part{Size: 5}}, {"negative", Part{Size: -1, Sum: other.Sum}}} {
		l := landingOf(t, to, m)
		l.ContinueAt(map[Digest]Part{content: tc.part, "unknown": other})
		before := l.From()[content]
		if err := rest(t, l, from, m); (err == nil) != (before == 0) || err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s, from byte %d: got %v", tc.name, before, err)
		}
		if tc.name == "of another content" {
			if _, err := os.Stat(filepath.Join(to, m.Entries[0].Path)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: a damaged content has its name: %v", tc.name, err)
			}
		}
		if err := os.RemoveAll(filepath.Join(to, m.Entries[0].Path)); err != nil {
			t.Fatal(err)
		}
	}
	// Known parts that are longer than the file, or of which nothing is left, begin anew.
	got, all, err := landingOf(t, to, m).Parts(t.Context(), map[Digest]Part{content: other}, func() bool { return false })
	if err != nil || !all || len(got) != 0 {
		t.Errorf("got %v, %t, %v; want nothing", got, all, err)
	}
}
