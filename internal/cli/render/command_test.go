// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const images = " --image=registry.test/train:1 --steps-image=registry.test/steps:1"

func TestRender(t *testing.T) {
	for _, tc := range []struct{ name, args, kinds, mode string }{
		{"shared claims, over TCP", "--cluster-file=../../../clusters/local.yaml --mode=tcp",
			"Lease/ml-dev-env Secret/ml-dev-env-services ServiceAccount/ml-dev-sa " +
				"PersistentVolumeClaim/ml-dev-workspace PersistentVolumeClaim/ml-dev-datasets Service/ml-dev-env-headless StatefulSet/ml-dev-env",
			"tcp"},
		{"RDMA as the file says, with services", "h-kim --cluster-file=../../../clusters/barcelona.yaml --services=jupyter --routes -n team",
			"Lease/h-kim Secret/h-kim-services " +
				"Service/h-kim Route/h-kim-jupyter ServiceAccount/ml-dev-sa Service/h-kim-headless StatefulSet/h-kim", "rdma"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var list struct {
				Items []struct {
					Kind     string
					Metadata struct {
						Name, Namespace string
						Annotations     map[string]string
					}
				}
			}
			if err := json.Unmarshal(render(t, strings.Fields(tc.args+" --output=json")...), &list); err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, item := range list.Items {
				kinds = append(kinds, item.Kind+"/"+item.Metadata.Name)
				if want := strings.Contains(tc.args, "-n team"); (item.Metadata.Namespace == "team") != want {
					t.Errorf("%s is in namespace %q", item.Kind, item.Metadata.Namespace)
				}
				if got := item.Metadata.Annotations["ml-dev-env/mode"]; item.Kind == "StatefulSet" && got != tc.mode {
					t.Errorf("mode %q, want %q", got, tc.mode)
				}
			}
			if diff := cmp.Diff(strings.Fields(tc.kinds), kinds); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if got := bytes.Count(render(t, strings.Fields(tc.args)...), []byte("---\n")); got != len(kinds) {
				t.Errorf("%d documents in YAML, want %d", got, len(kinds))
			}
		})
	}
}

// A cluster file that asks for it shows the PodMonitor.
func TestRenderPodMonitor(t *testing.T) {
	content, err := os.ReadFile("../../../clusters/local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "local.yaml")
	if err := os.WriteFile(file, append(content, "\nmonitoring: {pod_monitor: true}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(render(t, "--cluster-file="+file)); strings.Count(got, "\nkind: PodMonitor\n") != 1 {
		t.Errorf("want one PodMonitor in\n%s", got)
	}
}

func render(t *testing.T, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs(append(args, strings.Fields(images)...))
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRenderRefuses(t *testing.T) {
	for args, want := range map[string]struct{ message, next string }{
		"a b --mode=fast": {"arguments [\"a\" \"b\"]: want one environment or none\n--mode \"fast\": want auto, rdma or tcp\n--cluster-file is " +
			"missing", ""},
		"--cluster-file=../../../clusters/local.yaml --nodes=9 --image=x --mode=tcp": {"steps-image: is missing",
			"use --nodes=2; or correct the cluster file, if the nodes have more"},
	} {
		cmd := Command()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want.message) || fail.NextOf(err) != want.next {
			t.Errorf("%s: got %v, next %q; want %q, next %q", args, err, fail.NextOf(err), want.message, want.next)
		}
	}
}
