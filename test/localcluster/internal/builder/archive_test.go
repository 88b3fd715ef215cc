// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"
)

func tarOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len("content"))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte("content")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipOf(t *testing.T, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestExtract(t *testing.T) {
	plain := tarOf(t,
		&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./deep/run.sh", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "deep/run.sh"},
	)
	for name, content := range map[string][]byte{"tar": plain, "gzipped tar": gzipOf(t, plain)} {
		dir := t.TempDir()
		if err := extract(bytes.NewReader(content), dir); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := filepath.Join(dir, "deep", "run.sh")
		got, err := os.ReadFile(file)
		if err != nil || string(got) != "content" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, want 0755", name, info.Mode())
		}
	}
}

func TestExtractStaysInItsFolder(t *testing.T) {
	outside := t.TempDir()
	archive := tarOf(t,
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "out", Linkname: outside},
		&tar.Header{Typeflag: tar.TypeReg, Name: "out/escaped", Mode: 0o644},
	)
	if err := extract(bytes.NewReader(archive), t.TempDir()); err == nil {
		t.Error("extract wrote a file through a link to the outside")
	}
	if _, err := os.Stat(filepath.Join(outside, "escaped")); err == nil {
		t.Error("extract created the file outside the folder")
	}
	if err := extract(bytes.NewReader([]byte("only some text")), t.TempDir()); err == nil {
		t.Error("extract accepted text as an archive")
	}
}
