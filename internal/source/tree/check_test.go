// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const (
	emptyContent Digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	otherContent Digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
)

func file(path string) Entry         { return Entry{Path: path, Kind: File, Content: emptyContent} }
func link(path, target string) Entry { return Entry{Path: path, Kind: Link, Target: target} }
func folder(path string) Entry       { return Entry{Path: path, Kind: Folder} }

// sorted returns a manifest of entries that may be in any order.
func sorted(entries ...Entry) Manifest {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return Manifest{Entries: entries}
}

func TestCheckAccepts(t *testing.T) {
	for name, m := range map[string]Manifest{
		"nothing":                       {},
		"files beside a folder":         sorted(file("a.b"), file("a/b"), file("a0")),
		"names that look bad":           sorted(file("..."), file("a/..b"), file("b../c"), file("-rf"), file(".mlenv/trees/x")),
		"odd bytes":                     sorted(file("%FF%0A"), file("100%25")),
		"a link to a file":              sorted(file("a/b"), link("a/l", "b"), link("l", "a/b")),
		"a link up, within":             sorted(file("b"), link("a/c/l", "../../b")),
		"a link to the top":             sorted(link("a/top", "..")),
		"a link to nothing":             sorted(link("l", "gone/../x")),
		"a circle":                      sorted(link("a", "b"), link("b", "a"), link("c", "c/../c")),
		"through a link and back":       sorted(file("real/sub/f"), link("l", "real/sub"), link("m", "l/../x")),
		"one content twice":             sorted(file("a"), file("b")),
		"a link with an escaped target": sorted(link("l", "%FF/x")),
	} {
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		m    Manifest
		want string
	}{
		{"a path up", sorted(file("../x")), "../x: is not a path in a tree"},
		{"a path up within", sorted(file("a/../../x")), "is not a path in a tree"},
		{"an absolute path", sorted(file("/etc/passwd")), "is not a path in a tree"},
		{"no path", sorted(file("")), "is not a path in a tree"},
		{"this", sorted(folder(".")), "is not a path in a tree"},
		{"two slashes", sorted(file("a//b")), "is not a path in a tree"},
		{"a slash at the end", sorted(folder("a/")), "is not a path in a tree"},
		{"a zero byte", sorted(file("a%00b")), "holds a zero byte"},
		{"a hidden path up", sorted(file("%2E%2E/x")), "it has another spelling"},
		{"raw bytes", sorted(file("\xff")), "it has another spelling"},
		{"a long name", sorted(file(strings.Repeat("n", 256))), "too long"},
		{"a long path", sorted(file(strings.Repeat("d/", 1600) + "f")), "too long a path"},
		{"a path twice", sorted(file("a"), file("a")), "each path once"},
		{"a path twice, as two kinds", sorted(file("a"), link("a", "b")), "each path once"},
		{"out of order", Manifest{Entries: []Entry{file("b"), file("a")}}, "sorted by path"},
		{"a file with entries", sorted(file("a"), file("a/b")), "a/b: lies beneath a, which is a file"},
		{"a file with entries further off", sorted(file("a"), file("a.b"), file("a/b/c/d")), "lies beneath a, which is a file"},
		{"an entry beneath a link", sorted(link("a", "b"), file("a/x")), "lies beneath a, which is a link"},
		{"an empty folder with entries", sorted(folder("a"), file("a/x")), "is listed as an empty folder"},
		{"an absolute link", sorted(link("l", "/etc")), "leads to /etc, which is outside"},
		{"a link up", sorted(link("a/l", "../../x")), "outside of the tree"},
		{"a link up and back", sorted(link("l", "../tree/x")), "outside of the tree"},
		{"a link out through a link", sorted(link("a/b/up", ".."), link("l", "a/b/up/../../x")), "l: leads to a/b/up/../../x"},
		{"a link out through a link that hides the depth", sorted(file("a/x"), link("d/d/top", "../.."), link("l", "d/d/top/../x")),
			"l: leads to d/d/top/../x"},
		{"a link out through an absolute one", sorted(link("abs", "/"), link("l", "abs/etc")), "l: leads to abs/etc"},
		{"a link without target", sorted(link("l", "")), "a target of 0 bytes"},
		{"a link with a zero byte", sorted(link("l", "a%00")), "none of them 0"},
		{"a link with a raw target", sorted(link("l", "\xff")), "it has another spelling"},
		{"a link with content", sorted(Entry{Path: "l", Kind: Link, Target: "x", Content: emptyContent}), "fields of a file"},
		{"a file with target", sorted(Entry{Path: "f", Kind: File, Target: "x", Content: emptyContent}), "target of a link"},
		{"an executable folder", sorted(Entry{Path: "f", Kind: Folder, Executable: true}), "fields of a file"},
		{"an unknown kind", sorted(Entry{Path: "f", Kind: "device"}), `unknown kind "device"`},
		{"no digest", sorted(Entry{Path: "f", Kind: File}), `content ""`},
		{"a digest that is a path", sorted(Entry{Path: "f", Kind: File, Content: "../../" + emptyContent[6:]}), "64 lower-case hex digits"},
		{"an upper-case digest", sorted(Entry{Path: "f", Kind: File, Content: Digest(strings.ToUpper(string(otherContent)))}),
			"64 lower-case hex digits"},
		{"a negative size", sorted(Entry{Path: "f", Kind: File, Size: -1, Content: emptyContent}), "a size of -1 bytes"},
		{"two sizes", sorted(file("a"), Entry{Path: "b", Kind: File, Size: 1, Content: emptyContent}), "another file of the same content"},
	} {
		err := test.m.Check()
		if err == nil || fail.ReasonOf(err) != fail.UnsafeTree || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v (%s), want %q", test.name, err, fail.ReasonOf(err), test.want)
		}
	}
}

func TestCheckTellsAll(t *testing.T) {
	entries := []Entry{}
	for range 30 {
		entries = append(entries, link("l"+strings.Repeat("x", len(entries)), "/"))
	}
	err := sorted(entries...).Check()
	if err == nil || !strings.Contains(err.Error(), "30 of its entries") || !strings.HasSuffix(err.Error(), "and 10 more") {
		t.Errorf("got %v", err)
	}
}

func TestHash(t *testing.T) {
	base := sorted(file("a"), link("l", "a"), folder("z"))
	const want = "a6b56d1bdf5a5795ae8d0699472b6ebcc10cd59eb148bc1276f9ea283c527f1f"
	if got := base.Hash(); got != want {
		t.Errorf("hash of a known tree is %s, want %s: a node would not recognise the trees on its claims", got, want)
	}
	for name, other := range map[string]Manifest{
		"a path":        sorted(file("b"), link("l", "a"), folder("z")),
		"a target":      sorted(file("a"), link("l", "b"), folder("z")),
		"a kind":        sorted(file("a"), link("l", "a"), file("z")),
		"the bit":       sorted(Entry{Path: "a", Kind: File, Executable: true, Content: emptyContent}, link("l", "a"), folder("z")),
		"the content":   sorted(Entry{Path: "a", Kind: File, Content: otherContent}, link("l", "a"), folder("z")),
		"the size":      sorted(Entry{Path: "a", Kind: File, Content: emptyContent, Size: 1}, link("l", "a"), folder("z")),
		"one entry":     sorted(file("a"), link("l", "a")),
		"no entry left": {},
	} {
		if other.Hash() == base.Hash() {
			t.Errorf("%s does not change the hash", name)
		}
	}
	encoded, err := json.MarshalIndent(base, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var decoded Manifest
	if err := json.Unmarshal(encoded, &decoded); err != nil || decoded.Hash() != base.Hash() {
		t.Errorf("hash after JSON is %s, %v", decoded.Hash(), err)
	}
}

// FuzzManifest: a manifest that a peer sent as JSON, and that passes Check, is the same after it was sent again.
func FuzzManifest(f *testing.F) {
	for _, m := range []Manifest{sorted(file("a"), link("l", "a"), folder("z")), sorted(file("../x")), sorted(link("%FF", "/"))} {
		encoded, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Add([]byte(`{"entries":[{"kind":"file","size":-1}]}`))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		var m, again Manifest
		if json.Unmarshal(encoded, &m) != nil || m.Check() != nil {
			return
		}
		encoded, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(encoded, &again); err != nil || again.Check() != nil || again.Hash() != m.Hash() {
			t.Errorf("%s: sent again: %v, %v", encoded, err, again.Check())
		}
		for _, e := range m.Entries {
			if name, err := Unescape(e.Path); err != nil || !filepath.IsLocal(name) {
				t.Errorf("path %q passed", e.Path)
			}
		}
	})
}

// FuzzCheck creates the files of every manifest that passes, and checks that the kernel keeps all of them in the
// manifest's folder.
func FuzzCheck(f *testing.F) {
	for _, seed := range [][5]string{
		{"a", "b/c", "..", "d", "a"},
		{"a/b/up", "a/l", "..", "l", "a/b/up/../../x"},
		{"%FF", "x", "/etc", "y", "x/../../y"},
		{"a", "a/b", ".", "..", "a"},
		{"%2E%2E", "%41", "%", "100%25", "%0A"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, plain, first, firstTarget, second, secondTarget string) {
		for _, text := range []string{plain, first, secondTarget} {
			if name, err := Unescape(text); err == nil && Escape(name) != text {
				t.Fatalf("Unescape(%q) = %q, which is written %q", text, name, Escape(name))
			}
			if name, err := Unescape(Escape(text)); err != nil || name != text {
				t.Fatalf("Unescape(Escape(%q)) = %q, %v", text, name, err)
			}
		}
		m := sorted(file(plain), link(first, firstTarget), link(second, secondTarget))
		if m.Check() != nil {
			return
		}
		top := filepath.Join(t.TempDir(), "tree")
		for _, e := range m.Entries {
			name, err := Unescape(e.Path)
			if err != nil {
				t.Fatal(err)
			}
			if !filepath.IsLocal(name) {
				t.Fatalf("%q passed", name)
			}
			path := filepath.Join(top, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatalf("%q passed: %v", name, err)
			}
			if e.Kind == Link {
				target, err := Unescape(e.Target)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(target, path); err != nil {
					t.Fatalf("%q passed: %v", name, err)
				}
				continue
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatalf("%q passed: %v", name, err)
			}
		}
		for _, e := range m.Entries {
			name, _ := Unescape(e.Path)
			real, err := filepath.EvalSymlinks(filepath.Join(top, name))
			if err == nil && real != top && !strings.HasPrefix(real, top+"/") {
				t.Fatalf("%q leads to %q", name, real)
			}
		}
	})
}
