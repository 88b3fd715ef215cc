package server

import (
	"strings"
	"testing"
)

// A rank can tamper with a process so that its stacks are endless.
func TestOutputOfProgramsIsBounded(t *testing.T) {
	var value any
	if err := runJSON(t.Context(), &value, "cat", "/dev/zero"); err == nil || !strings.Contains(err.Error(), "running cat: ") {
		t.Errorf("an endless output: %v, want a refusal", err)
	}
}
