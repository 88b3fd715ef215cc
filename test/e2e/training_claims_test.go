// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
)

// claimText is a claim that a user creates.
const claimText = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: %s
  resources: {requests: {storage: 1Gi}}
`

// claimsThatExist trains with a claim that the cluster file names, which mlenv init proposes and preflight misses in a file without
// it. Then it expands claims: the shared ones, the ones of nodes, whose file system the kubelet makes grow, and not one whose class does
// not allow it.
func claimsThatExist(u trainer) {
	u.applyText(fmt.Sprintf(claimText, "ml-datasets", "nfs-csi"))
	u.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "persistentvolumeclaim/ml-datasets", within(timeForTheObjectToChange))
	if err := os.WriteFile(filepath.Join(u.volume("ml-datasets"), "text"), []byte("what was there\n"), 0o644); err != nil {
		u.Fatal(err)
	}
	dir := u.project(map[string]string{"train.sh": "cat /datasets/text\n"})
	u.enters(dir, u.clusterFile(), typed{command: "preflight --cluster-file=clusters/CLUSTER.yaml --gpus-per-node=1", code: anyCode,
		says: `claim ml-datasets \(1Gi, bound, mounted now by no pod\) exists and the cluster file does not name it`})
	out, _ := u.says(dir, command.Done, "init", "--to=-")
	u.mustContain(out, "datasets_claim: ml-datasets\n")

	named := u.clusterFile("  mode: rwx\n", "  mode: rwx\n  datasets_claim: ml-datasets\n")
	u.install(named)
	out, _ = u.says(dir, command.Done, append([]string{"run", ".", "train.sh"}, runFlags()...)...)
	u.mustContain(out, "what was there")
	u.claimsAre("ml-datasets", "ml-dev-workspace")
	out, _ = u.says(dir, command.Done, "claims")
	u.mustContain(out, "ml-datasets ")

	e := u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=workspace-size=2Gi", "--param=datasets-size=3Gi")).succeeded()
	e.mustContain(e.log("provision"), "Claim ml-datasets is being expanded from 1Gi to 3Gi (class nfs-csi).", "Claim ml-datasets has 3Gi now.",
		"Claim ml-dev-workspace has 2Gi now.")
	u.hasSize("ml-datasets", "3Gi")
	u.hasSize("ml-dev-workspace", "2Gi")
	u.mustContain(u.upAndDown(named), "Claim ml-datasets stays as it is with 3Gi: 1Gi was asked for, and no claim is ever made smaller.")

	perNode := "--storage=volumeClaimTemplates"
	u.upAndDown(named, perNode)
	out = u.upAndDown(named, perNode, "--workspace-size=2Gi")
	for _, claim := range []string{"ml-dev-workspace-ml-dev-env-0", "ml-dev-workspace-ml-dev-env-1"} {
		u.mustContain(out, "The volume of claim "+claim+" has 2Gi; its file system grows when a node mounts it.", "Claim "+claim+
			" has 2Gi now.")
		u.hasSize(claim, "2Gi")
	}

	u.applyText(fmt.Sprintf(claimText, "fixed", "nfs-csi-retain"))
	u.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "persistentvolumeclaim/fixed", within(timeForTheObjectToChange))
	volume := filepath.Base(u.volume("fixed"))
	u.kubectl("patch", "persistentvolume", volume, `--patch={"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`) // it ends with the namespace
	u.install(u.clusterFile("  mode: rwx\n", "  mode: rwx\n  datasets_claim: fixed\n"))
	e = u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=datasets-size=2Gi")).succeeded()
	const stays = "class nfs-csi-retain does not allow it: allowVolumeExpansion is not true"
	e.mustContain(e.log("preflight"), stays)
	e.mustContain(e.log("provision"), stays)
	u.hasSize("fixed", "1Gi")
}

// upAndDown creates an environment of two nodes, releases it, and returns what mlenv up printed.
func (u trainer) upAndDown(file string, flags ...string) string {
	u.Helper()
	stdout, stderr := u.says(u.TempDir(), command.Done,
		append([]string{"up", "--cluster-file=" + file, "--steps-image=" + u.steps, "--nodes=2",
			"--gpus-per-node=1"}, flags...)...)
	u.says(u.TempDir(), command.Done, "down")
	return stdout + stderr
}

// hasSize fails unless the claim has a volume of this size.
func (u trainer) hasSize(claim, size string) {
	u.Helper()
	u.equal("the size of claim "+claim, u.kubectl("get", "persistentvolumeclaim", claim, "--output=jsonpath={.status.capacity.storage}"), size)
}
