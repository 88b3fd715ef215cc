// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// packFile is a pack that a test builds.
type packFile struct {
	bytes.Buffer
	objects uint32
}

// The types of a pack's objects.
const (
	packCommit   = 1
	packTree     = 2
	packBlob     = 3
	packRefDelta = 7
)

// add appends an object. For a delta, base is the hash of the object that it changes.
func (p *packFile) add(t *testing.T, kind int, base, content []byte) (hash [sha1.Size]byte) {
	t.Helper()
	size := len(content)
	first := byte(kind<<4 | size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(first | 0x80)
		first = byte(size & 127)
	}
	p.WriteByte(first)
	p.Write(base)
	z := zlib.NewWriter(p)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	p.objects++
	name := map[int]string{packCommit: "commit", packTree: "tree", packBlob: "blob"}[kind]
	return sha1.Sum(append([]byte(fmt.Sprintf("%s %d\x00", name, len(content))), content...))
}

func (p *packFile) finish() []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), p.objects)
	pack = append(pack, p.Bytes()...)
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// amplifyingPack returns a pack of a commit and deltas that each copy 32 MiB: some kilobytes expand to some gigabytes.
func amplifyingPack(t *testing.T, deltas int) (pack []byte, commit string) {
	t.Helper()
	const size = 32 << 20
	var p packFile
	blob := p.add(t, packBlob, nil, make([]byte, size))
	tree := p.add(t, packTree, nil, append([]byte("100644 zeros\x00"), blob[:]...))
	head := p.add(t, packCommit, nil, fmt.Appendf(nil, "tree %x\nauthor a <a@example.com> 0 +0000\ncommitter a <a@example.com> 0 +0000\n\nx\n",
		tree))
	for i := range deltas {
		delta := binary.AppendUvarint(binary.AppendUvarint(nil, size), size+4)
		for offset := uint32(0); offset < size; offset += 8 << 20 {
			delta = append(delta, 0xcf)
			delta = binary.LittleEndian.AppendUint32(delta, offset)
			delta = append(delta, 0x80) // 8 MiB
		}
		delta = append(delta, 4)
		delta = binary.BigEndian.AppendUint32(delta, uint32(i))
		p.add(t, packRefDelta, blob[:], delta)
	}
	return p.finish(), fmt.Sprintf("%x", head)
}

// packet returns a line of git's protocol.
func packet(line string) string { return fmt.Sprintf("%04x%s", len(line)+4, line) }

// TestFetchLimitsTime: fetching a pack from a hostile server fails with a message if the pack takes hours to resolve.
func TestFetchLimitsTime(t *testing.T) {
	// 20 GB, for which the fastest processors need several times the limit.
	const deltas, timeToResolve, sizeOfASmallPack = 600, time.Second, 100 << 10
	pack, commit := amplifyingPack(t, deltas)
	if len(pack) > sizeOfASmallPack {
		t.Fatalf("the pack has %d bytes", len(pack))
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info/refs") {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, packet("# service=git-upload-pack\n"), "0000",
				packet(commit+" HEAD\x00shallow symref=HEAD:refs/heads/main\n"), packet(commit+" refs/heads/main\n"), "0000")
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		fmt.Fprint(w, packet("shallow "+commit), "0000")
		if request, _ := io.ReadAll(r.Body); bytes.Contains(request, []byte("done")) {
			fmt.Fprint(w, packet("NAK\n"), string(pack))
		}
	}))
	defer server.Close()
	source := Source{URL: server.URL + "/repo", Auth: (&webServer{Server: server}).auth(t, nil), limits: usualLimits}
	source.limits.cpu = timeToResolve
	_, _, _, err := fetchInto(t, source)
	wantFailure(t, err, fail.RepositoryUnavailable, "needs more than 1s of processor time", "Git LFS")
}

// TestFetchLimitsFiles: nested folders name more files than any disk can hold.
func TestFetchLimitsFiles(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	entry := "100644 blob " + git(t, repo, "content", "hash-object", "-w", "--stdin")
	for range 7 {
		var folder strings.Builder
		for i := range 10 {
			fmt.Fprintf(&folder, "%s\tname%d\n", entry, i)
		}
		entry = "040000 tree " + git(t, repo, folder.String(), "mktree")
	}
	git(t, repo, "", "update-ref", "refs/heads/main", git(t, repo, "", "commit-tree", "-m", "x", strings.TrimPrefix(entry, "040000 tree ")))
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth = server.goodAuth(t)
	const filesOfACommit, bytesOfTheirNames, noLimit = 9_999, 1 << 20, 1 << 30
	for name, change := range map[string]func(*limits){
		"output": func(l *limits) { l.files, l.output = noLimit, bytesOfTheirNames },
		"files":  func(l *limits) { l.files, l.output = filesOfACommit, noLimit },
	} {
		t.Run(name, func(t *testing.T) {
			source := source // only this test sets the revision
			source.limits = usualLimits
			change(&source.limits)
			if name == "files" {
				source.Revision = git(t, repo, "", "commit-tree", "-m", "x", "HEAD:name0/name1/name2")
				git(t, repo, "", "update-ref", "refs/heads/small", source.Revision)
			}
			_, _, _, err := fetchInto(t, source)
			wantFailure(t, err, fail.UnsafeTree, "the commit has more than", "/datasets")
		})
	}
}

// FuzzParsePointer: a pointer names an object by a hash that is safe in a path, and writing the pointer again gives the
// same text.
func FuzzParsePointer(f *testing.F) {
	f.Add([]byte(pointerTo(strings.Repeat("0a", 32), 12345)))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\r\noid sha256:../../etc\nsize 1\n"))
	f.Add([]byte("version https://hawser.github.com/spec/v1\nsize 999999999999999999999\noid sha256:" + strings.Repeat("F", 64)))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, ok := parsePointer(content)
		if !ok {
			return
		}
		if len(p.id) != 64 || strings.Trim(p.id, "0123456789abcdef") != "" || p.size < 0 {
			t.Errorf("%q: got %+v", content, p)
		}
		if again, ok := parsePointer([]byte(pointerTo(p.id, p.size))); !ok || again != p {
			t.Errorf("%q: written again: got %+v, %t, want %+v", content, again, ok, p)
		}
	})
}

// FuzzParseAddress: git reads an accepted address with the same meaning, and no error shows a password.
func FuzzParseAddress(f *testing.F) {
	for _, url := range []string{"https://me:hush@git.example:8443/team/repo.git", "git@git.example:team/repo", "ssh://[::1]:22/~me/x",
		"https://git.example/x%0ay", "ext::sh -c x", "-u@x:y"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		a, err := parseAddress(url)
		if err != nil {
			return
		}
		again, err := parseAddress(a.forGit())
		if err != nil {
			t.Fatalf("%q: git reads %q: %v", url, a.forGit(), err)
		}
		if again.scheme != a.scheme || again.host != a.host || again.port != a.port || again.path != a.path {
			t.Errorf("%q: git reads %q: %+v, want %+v", url, a.forGit(), again, a)
		}
		if strings.HasPrefix(a.forGit(), "-") {
			t.Errorf("%q: git reads %q, an option", url, a.forGit())
		}
	})
}
