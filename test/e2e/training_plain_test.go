// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// plainKubernetes trains where no security context constraint chooses a user for the pods. The namespace has a run level, which exempts it
// from constraints as on OpenShift; the cluster has the API group of constraints all the same.
func plainKubernetes(u trainer) {
	u.kubectl("label", "namespace", u.namespace, "openshift.io/run-level=1")
	dir := u.project(map[string]string{"train.sh": "id\numask 077\nmkdir -p /workspace/out\necho weights > /workspace/out/model-$NODE_RANK\n"})
	u.enters(dir, u.clusterFile(), typed{command: "preflight --cluster-file=clusters/CLUSTER.yaml --gpus-per-node=1", code: anyCode,
		says: `no security context constraint is named, so pod security levels decide, and no user: `})

	u.installChanged("storage:\n", "security:\n  run_as_user: 1001\nstorage:\n")
	out, _ := u.says(dir, command.Done, append([]string{"run", ".", "train.sh", "--run-name=plain"}, runFlags()...)...)
	u.mustContain(out, "[0 -] uid=1001 gid=0(root) groups=0(root),1001", "Run plain succeeded")
	u.nothingLeft()
	u.says(dir, command.Done, "fetch", "plain", "out", "--to=got")
	for _, name := range []string{"model-0", "model-1"} {
		if content, err := os.ReadFile(filepath.Join(dir, "got", "out", name)); err != nil || string(content) != "weights\n" {
			u.Errorf("%s is %q, %v", name, content, err)
		}
	}
}
