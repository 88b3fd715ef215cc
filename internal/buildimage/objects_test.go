package buildimage

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
)

var update = flag.Bool("update", false, "write the golden file")

func TestBuildConfig(t *testing.T) {
	p := plan{
		namespace: "ns", flavour: "pytorch-2.9-numpy2", pullSecret: "ngc", pushSecret: "push", trust: "mlenv-trusted-ca", deadline: 30 * time.Minute,
		passing: []Arg{{"HTTPS_PROXY", "http://proxy:3128"}, {"PIP_CERT", trustedCA}},
		inputs:  inputs{Strategy: "Docker", Dockerfile: "FROM a", BuildArgs: []Arg{{"BASE_IMAGE", "a"}}, Env: []Arg{{"TEAM", "vision"}}, Bases: map[string]string{"a": "sha256:1"}},
		resources: cluster.BuildResources{
			Requests: cluster.BuildAmounts{CPU: cluster.MustParseQuantity("4")},
			Limits:   cluster.BuildAmounts{Memory: cluster.MustParseQuantity("32Gi"), EphemeralStorage: cluster.MustParseQuantity("60Gi")},
		},
	}
	got, err := yaml.Marshal([]any{p.imageStream(), p.buildConfig()})
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/buildconfig.yaml"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}
