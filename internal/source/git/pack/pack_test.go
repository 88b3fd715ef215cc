package pack

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// git runs git in a repository, with no configuration but the repository's own.
func git(t *testing.T, dir, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1"}
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, stderr.Bytes())
	}
	return string(out)
}

// history makes a repository whose files change a little from commit to
// commit, so that git stores chains of deltas.
func history(t *testing.T, commits int) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "", "init", "-q")
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 200_000)
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	for i := range commits {
		copy(content[random.IntN(len(content)-100):], fmt.Sprintf("commit number %d was here", i))
		for name, text := range map[string][]byte{
			"large": content,
			"small": []byte(strings.Repeat("a line that comes again\n", i+50)),
			"empty": nil,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		git(t, dir, "", "add", ".")
		git(t, dir, "", "commit", "-qm", fmt.Sprint(i))
	}
	git(t, dir, "", "tag", "-a", "-m", "a tag", "v1")
	return dir
}

// receiveWith receives a pack with that much memory for intermediate objects.
func receiveWith(t *testing.T, packed string, memory int64) (*Pack, error) {
	t.Helper()
	scratch := t.TempDir()
	file, err := os.CreateTemp(scratch, "pack-")
	if err != nil {
		t.Fatal(err)
	}
	p := newPack(file, scratch)
	p.memory = budget(memory)
	t.Cleanup(func() {
		p.Close()
		if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
			t.Errorf("after Close the scratch folder has %v, %v: want nothing", left, err)
		}
	})
	return p, p.receive(t.Context(), strings.NewReader(packed), func(int, int) {})
}

func TestReceiveDeltas(t *testing.T) {
	repo := history(t, 12)
	objects := git(t, repo, "", "cat-file", "--batch-all-objects", "--batch-check")
	var want strings.Builder // the same lines as git's
	names := ""
	for line := range strings.Lines(objects) {
		names += line[:40] + "\n"
	}
	want.WriteString(objects)
	for _, test := range []struct {
		name   string
		args   []string
		memory int64
	}{
		{"deltas by offset", []string{"--delta-base-offset"}, maxMemory},
		{"deltas by hash", nil, maxMemory},
		{"deltas by offset on disk", []string{"--delta-base-offset"}, 0},
		{"deltas by hash on disk", nil, 0},
		{"no deltas", []string{"--window=0"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			packed := git(t, repo, names, append([]string{"pack-objects", "-q", "--stdout"}, test.args...)...)
			p, err := receiveWith(t, packed, test.memory)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			var blobs []Hash
			for _, i := range p.byHash {
				e := p.entries[i]
				fmt.Fprintf(&got, "%s %s %d\n", e.hash, e.kind, e.size)
				content, err := p.Read(e.hash, e.kind)
				if err != nil {
					t.Fatal(err)
				}
				checkHash(t, e.kind, content, e.hash)
				if e.kind == Blob {
					blobs = append(blobs, e.hash)
				}
			}
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				t.Errorf("objects (-git +pack):\n%s", diff)
			}
			checkExtract(t, p, blobs)
			checkExtract(t, p, blobs[:1])
			if budget(test.memory) != p.memory {
				t.Errorf("memory left: got %d: want %d", p.memory, test.memory)
			}
		})
	}
}

func checkHash(t *testing.T, kind Kind, content []byte, want Hash) {
	t.Helper()
	h := newHash(kind, int64(len(content)))
	h.Write(content)
	if got := Hash(h.Sum(nil)); got != want {
		t.Errorf("content of %s: got the hash %s", want, got)
	}
}

type extracted struct {
	bytes.Buffer
	closed int
}

func (e *extracted) Close() error { e.closed++; return nil }

func checkExtract(t *testing.T, p *Pack, blobs []Hash) {
	t.Helper()
	got := map[Hash]*extracted{}
	err := p.Extract(t.Context(), blobs, func(h Hash) (io.WriteCloser, error) {
		if got[h] != nil {
			t.Errorf("blob %s: asked for twice", h)
		}
		got[h] = &extracted{}
		return got[h], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(blobs) {
		t.Errorf("extracted: got %d blobs: want %d", len(got), len(blobs))
	}
	for h, e := range got {
		checkHash(t, Blob, e.Bytes(), h)
		if e.closed != 1 {
			t.Errorf("blob %s: closed %d times: want once", h, e.closed)
		}
	}
}

func TestCommits(t *testing.T) {
	repo := history(t, 3)
	head := strings.TrimSpace(git(t, repo, "", "rev-parse", "HEAD"))
	packed := git(t, repo, "HEAD\n", "pack-objects", "-q", "--stdout", "--revs")
	p, err := receiveWith(t, packed, maxMemory)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := ParseHash(head)
	if got := p.Commits(head[:12]); !cmp.Equal(got, []Hash{want}) {
		t.Errorf("commits that begin with %s: got %v", head[:12], got)
	}
	if got := p.Commits(""); len(got) != 3 {
		t.Errorf("all commits: got %v: want 3", got)
	}
	if got := p.Commits(head + "0"); got != nil {
		t.Errorf("more digits than a hash has: got %v", got)
	}
}

// A broken pack is an error: never a panic, a hang or a wrong object.
func TestReceiveBroken(t *testing.T) {
	repo := history(t, 3)
	packed := git(t, repo, "HEAD\n", "pack-objects", "-q", "--stdout", "--revs", "--delta-base-offset")
	for n := 0; n < len(packed); n += 1 + len(packed)/200 {
		if _, err := receiveWith(t, packed[:n], maxMemory); err == nil {
			t.Errorf("pack of %d bytes cut to %d: got no error", len(packed), n)
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		broken := []byte(packed)
		broken[random.IntN(len(broken))] ^= 1 << random.IntN(8)
		// The trailer is not looked at, so that some are as good as before.
		_, _ = receiveWith(t, string(broken), maxMemory)
	}
}

// A thin pack leaves bases out; nobody asked for one.
func TestReceiveThin(t *testing.T) {
	repo := history(t, 3)
	packed := git(t, repo, "HEAD\n^HEAD~1\n", "pack-objects", "-q", "--stdout", "--revs", "--thin")
	_, err := receiveWith(t, packed, maxMemory)
	if err == nil || !strings.Contains(err.Error(), ErrMissing.Error()) {
		t.Errorf("thin pack: got %v: want %v", err, ErrMissing)
	}
}
