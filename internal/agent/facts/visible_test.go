// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// fourShown is the nvidia-smi script of a privileged container on a node with four GPUs. MIG splits the last one.
const fourShown = `case "$1" in
-L) echo 'GPU 0: NVIDIA H100 (UUID: GPU-a)'
echo 'GPU 3: NVIDIA H100 (UUID: GPU-d)'
echo '  MIG 3g.40gb     Device  0: (UUID: MIG-1)'
echo '  MIG 3g.40gb     Device  1: (UUID: MIG-2)';;
*) i=0; for gpu in a b c d; do
  mig=Disabled; [ $gpu = d ] && mig=Enabled
  echo "$i, GPU-$gpu, NVIDIA H100, 580.95.05, 81559, 4, 0, 30, 0x0, None, 0, 00000000:${i}9:00.0, $mig, 9.0"; i=$((i+1))
done;;
esac`

func TestOwnGPUs(t *testing.T) {
	const all = "GPU-a GPU-b GPU-c MIG-1 MIG-2"
	for _, tc := range []struct {
		name    string
		environ string
		given   int
		want    string
		more    bool
		err     string
	}{
		{"UUIDs, in the kubelet's order", "NVIDIA_VISIBLE_DEVICES=GPU-c,GPU-a", 2, "GPU-a GPU-c", true, ""},
		{"one of them is gone", "NVIDIA_VISIBLE_DEVICES=GPU-c,GPU-x", 2, "GPU-c", true, ""},
		{"indexes of the node", "NVIDIA_VISIBLE_DEVICES=0,2", 2, "GPU-a GPU-c", true, ""},
		{"indexes of the node, in a container that sees its own", "NVIDIA_VISIBLE_DEVICES=3,4,5,6,7", 5, all, false, ""},
		{"MIG devices", "NVIDIA_VISIBLE_DEVICES=MIG-2", 1, "MIG-2", true, ""},
		{"no list, and as many as given", "NVIDIA_VISIBLE_DEVICES=void", 5, all, false, ""},
		{"no list of CDI, and more than given", "NVIDIA_VISIBLE_DEVICES=void", 4, "", false, "nvidia-smi shows 5 GPUs, the pod was given 4, " +
			"and neither NVIDIA_VISIBLE_DEVICES nor"},
		{"the image's value, and more than given", "NVIDIA_VISIBLE_DEVICES=all", 1, "", false, "want a list, or all 5 for the pod"},
		{"no variable", "", 2, "", false, "the pod was given 2"},
		{"how many were given is not known", "", 0, all, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			smi(t, fourShown)
			gpus, more, err := GPUs(context.Background(), strings.Fields(tc.environ), tc.given)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			var got []string
			for _, gpu := range gpus {
				got = append(got, gpu.UUID)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" || tc.err == "" && more != tc.more {
				t.Errorf("more %t, want %t (-want +got):\n%s", more, tc.more, diff)
			}
		})
	}
}

func TestGiven(t *testing.T) {
	for environ, want := range map[string]int{
		"NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b,GPU-a,GPU-b": 2, // four places on two GPUs that are shared by time slicing
		"NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b,GPU-c,GPU-d": 4,
		"NVIDIA_VISIBLE_DEVICES=void":                    4,
	} {
		if got := GivenGPUs([]string{environ}, 4); got != want {
			t.Errorf("%s: got %d GPUs, want %d", environ, got, want)
		}
	}
}

func TestNVLink(t *testing.T) {
	for script, want := range map[string]rdma.Answer{
		`[ "$*" = "topo -m" ] && printf '\tGPU0\tGPU1\nGPU0\t X \tNV18\n'`: rdma.Yes,
		`printf '\tGPU0\tGPU1\nGPU0\t X \tSYS\n'`:                          rdma.No,
		`exit 9`: "",
	} {
		smi(t, script)
		if got := NVLink(context.Background()); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
}

// The device plugin's strategy volume-mounts lists GPUs as names in a folder.
func TestListedByMounts(t *testing.T) {
	dir := t.TempDir()
	for _, uuid := range []string{"GPU-a", "GPU-b"} {
		if err := os.WriteFile(filepath.Join(dir, uuid), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, value := range []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=" + mountedDevices, "PATH=/bin"} {
		if diff := cmp.Diff([]string{"GPU-a", "GPU-b"}, listed([]string{value}, dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", value, diff)
		}
	}
	if got := listed([]string{"NVIDIA_VISIBLE_DEVICES=GPU-c"}, dir); len(got) != 1 || got[0] != "GPU-c" {
		t.Errorf("the variable lists %v", got)
	}
}
