package server

import (
	"os"
	"strings"
	"testing"
)

// aJob returns a job whose keepers are the test's own binary.
func aJob(t *testing.T) *job {
	return &job{processes: &processes{record: t.TempDir()}, own: ownPrograms{agent: os.Args[0]}}
}

// A rank can tamper with a process so that its stacks are endless.
func TestOutputOfProgramsIsBounded(t *testing.T) {
	var value any
	if err := aJob(t).runJSON(t.Context(), &value, "cat", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "running cat: ") {
		t.Errorf("an endless output: %v, want a refusal", err)
	}
}
