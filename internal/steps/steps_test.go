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
		{"by link", []string{"/ko-app/provision", "--nodes=2"}, "provision", []string{"/ko-app/provision", "--nodes=2"}},
		{"by link, with another's name as argument", []string{"train", "teardown"}, "train", []string{"train", "teardown"}},
		{"by first argument", []string{"/ko-app/ml-dev-env", "sync-repo", "--lfs"}, "sync-repo", []string{"sync-repo", "--lfs"}},
		{"by neither", []string{"ml-dev-env", "launch"}, "ml-dev-env", []string{"ml-dev-env", "launch"}},
		{"without arguments", []string{"ml-dev-env"}, "ml-dev-env", []string{"ml-dev-env"}},
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
