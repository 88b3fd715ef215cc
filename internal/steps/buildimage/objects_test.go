// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

func TestBuildConfig(t *testing.T) {
	p := plan{
		namespace: "ns", flavour: "pytorch-2.9-numpy2", pullSecret: "ngc", pushSecret: "push", trust: "mlenv-trusted-ca",
		deadline: 30 * time.Minute,
		passing:  []Arg{{"HTTPS_PROXY", "http://proxy:3128"}, {"PIP_CERT", trustedCA}},
		inputs: inputs{Strategy: "Docker", Dockerfile: "FROM a", BuildArgs: []Arg{{"BASE_IMAGE", "a"}}, Env: []Arg{{"TEAM", "vision"}},
			Bases: map[string]string{"a": "sha256:1"}},
		resources: cluster.BuildResources{
			Requests: cluster.BuildResourceList{CPU: cluster.MustParseQuantity("4")},
			Limits:   cluster.BuildResourceList{Memory: cluster.MustParseQuantity("32Gi"), EphemeralStorage: cluster.MustParseQuantity("60Gi")},
		},
	}
	got, err := yaml.Marshal([]any{p.imageStream(), p.buildConfig()})
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/buildconfig.yaml"
	golden.File(t, path, string(got))
}
