// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// preflightIn runs mlenv preflight --output=yaml.
func preflightIn(t *testing.T, args string, more ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, problems strings.Builder
	words := slices.Concat(strings.Fields(args), more, []string{"--output=yaml", "--image=registry.test/train:1"})
	code = command.RunCommands(t.Context(), PreflightCommand(), words, &out, &problems)
	return code, out.String(), problems.String()
}

const stepsImage = " --steps-image=registry.test/steps:1"

func TestObjects(t *testing.T) {
	for _, tc := range []struct{ name, args, kinds, mode string }{
		{"shared claims, over TCP", "--cluster-file=../../../clusters/local.yaml --mode=tcp",
			"Lease/ml-dev-env Secret/ml-dev-env-services ServiceAccount/ml-dev-sa " +
				"PersistentVolumeClaim/ml-dev-workspace PersistentVolumeClaim/ml-dev-datasets Service/ml-dev-env-headless StatefulSet/ml-dev-env",
			"tcp"},
		{"RDMA as the file says, with services", "--name=h-kim --cluster-file=../../../clusters/barcelona.yaml --services=jupyter --routes " +
			"-n team", "Lease/h-kim Secret/h-kim-services " +
			"Service/h-kim Route/h-kim-jupyter ServiceAccount/ml-dev-sa Service/h-kim-headless StatefulSet/h-kim", "rdma"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, problems := preflightIn(t, tc.args+stepsImage)
			if code != command.Done {
				t.Fatal(problems)
			}
			var kinds []string
			for _, document := range strings.Split(out, "---\n")[1:] {
				var item struct {
					Kind     string
					Metadata struct {
						Name, Namespace string
						Annotations     map[string]string
					}
				}
				if err := yaml.Unmarshal([]byte(document), &item); err != nil {
					t.Fatal(err)
				}
				kinds = append(kinds, item.Kind+"/"+item.Metadata.Name)
				if want := strings.Contains(tc.args, "-n team"); (item.Metadata.Namespace == "team") != want {
					t.Errorf("%s is in namespace %q", item.Kind, item.Metadata.Namespace)
				}
				if got := item.Metadata.Annotations["ml-dev-env.github.io/mode"]; item.Kind == "StatefulSet" && got != tc.mode {
					t.Errorf("mode %q, want %q", got, tc.mode)
				}
			}
			if diff := cmp.Diff(strings.Fields(tc.kinds), kinds); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// A cluster file that asks for it shows the PodMonitor.
func TestObjectsWithPodMonitor(t *testing.T) {
	content, err := os.ReadFile("../../../clusters/local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "local.yaml")
	if err := os.WriteFile(file, append(content, "\nmonitoring: {pod_monitor: true}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, got, problems := preflightIn(t, stepsImage, "--cluster-file="+file); strings.Count(got, "\nkind: PodMonitor\n") != 1 {
		t.Errorf("want one PodMonitor in\n%s%s", got, problems)
	}
}

func TestObjectsRefused(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		code       int
		want       []string
	}{
		{"every mistake in flags", "a --mode=fast", command.WrongUsage, []string{`argument "a": want flags only`,
			"--output=yaml prints the objects of a cluster file: want --cluster-file with it", `--mode "fast": want auto, rdma or tcp`}},
		{"a request that the file does not allow", "--cluster-file=../../../clusters/local.yaml --nodes=9 --mode=tcp", command.Failed,
			[]string{"steps-image: is missing", "use --nodes=2; or correct the cluster file, if the nodes have more"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, problems := preflightIn(t, tc.args)
			if code != tc.code || out != "" {
				t.Errorf("got exit code %d, %q; want %d and no objects", code, out, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(problems, want) {
					t.Errorf("got %s; want %q", problems, want)
				}
			}
		})
	}
}
