// SPDX-License-Identifier: Apache-2.0

package fetch

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// The name of the record's folder begins with a dot, so users would not find the logs there.
func TestMove(t *testing.T) {
	record := RecordOf("uid")
	content := tree.Digest(strings.Repeat("0", 64))
	manifest := func(paths ...string) (m tree.Manifest) {
		for _, path := range paths {
			m.Entries = append(m.Entries, tree.Entry{Path: path, Kind: tree.File, Size: 1, Content: content})
		}
		return m
	}
	for _, tc := range []struct {
		name      string
		from      tree.Manifest
		want      tree.Manifest
		forbidden bool
	}{
		{"the record", manifest(record+"/rank-0.log", "checkpoints/mine/model"), manifest("checkpoints/mine/model", "logs/rank-0.log"), false},
		{"another record", manifest(record + "-2/rank-0.log"), manifest(record + "-2/rank-0.log"), false},
		{"a file in its place", manifest(record+"/rank-0.log", "logs/rank-0.log"), tree.Manifest{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := move(tc.from, record, "logs")
			if tc.forbidden {
				if fail.ReasonOf(err) != fail.UnsafeTree {
					t.Errorf("got %v, want UnsafeTree", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The pod that reads a claim has no token, because a training can put anything on the claim, and it complies with
// OpenShift's restricted-v2.
func TestPodIsRestricted(t *testing.T) {
	spec := podOf(Claim{For: "env", Name: "env-workspace"}, "image").Spec
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("the pod has the service account's token")
	}
	if !*spec.SecurityContext.RunAsNonRoot || spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Errorf("pod: %+v", spec)
	}
	for _, container := range spec.Containers {
		s := container.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Add) > 0 ||
			!slices.Contains(s.Capabilities.Drop, "ALL") {
			t.Errorf("container %s: %+v", container.Name, s)
		}
		for _, mount := range container.VolumeMounts {
			if !mount.ReadOnly {
				t.Errorf("%s is writable; want it read-only", mount.MountPath)
			}
		}
	}
}
