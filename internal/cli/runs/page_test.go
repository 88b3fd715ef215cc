// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

func TestWritePage(t *testing.T) {
	r := receipt.Receipt{Run: "train-1", Namespace: "ns", Verdict: receipt.Succeeded}
	path := filepath.Join(t.TempDir(), "report.html")
	var out strings.Builder
	if err := writePage(&out, path, r); err != nil || out.String() != "The report of run ns/train-1 is "+path+".\n" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	first, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(first), "<h1>train-1</h1>") {
		t.Errorf("%q, %v", first, err)
	}
	r.Run = "train-2"
	if err := writePage(&out, path, r); fail.ReasonOf(err) != fail.InvalidInput || fail.NextOf(err) == "" {
		t.Errorf("over a file that exists: %v, want InvalidInput and what to do", err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(first) {
		t.Errorf("the file was overwritten: %v", err)
	}
	out.Reset()
	if err := writePage(&out, "-", r); err != nil || !strings.HasPrefix(out.String(), "<!doctype html>") {
		t.Errorf("standard output has %.40q, %v", out.String(), err)
	}
}
