// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPick(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string
		left []string
	}{
		{"a step", []string{"/ko-app/steps", "sync-repo", "--lfs"}, "sync-repo", []string{"sync-repo", "--lfs"}},
		{"a step, with another's name as argument", []string{"steps", "train", "teardown"}, "train", []string{"train", "teardown"}},
		{"no step", []string{"steps", "launch"}, "steps", []string{"steps", "launch"}},
		{"without arguments", []string{"steps"}, "steps", []string{"steps"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command, left := Pick(test.args)
			if command.Name() != test.want {
				t.Errorf("got %s, want %s", command.Name(), test.want)
			}
			if diff := cmp.Diff(test.left, left); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}
