// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// envSecret tests that the keys of a Secret reach the ranks and appear nowhere else.
func envSecret(u trainer) {
	const value = "e2e-secret-5f2b81c09d"
	u.kubectl("create", "secret", "generic", "my-keys", "--from-literal=E2E_TOKEN="+value)
	name := u.start("e2e/secret.sh", byShell, oneGPU, "--param=env-secret=my-keys")
	for node := range 2 {
		u.waitOutput(name, "train", fmt.Sprintf("[%d -] node %d has %x", node, node, sha256.Sum256([]byte(value))))
	}
	u.waitOutput(name, "train", "[1 -] node 1 holds the environment")
	// OpenShift creates the second Secret after the account.
	u.mustContain(u.kubectl("get", "pod/ml-dev-env-0", "pod/ml-dev-env-1", "--output=jsonpath={range .items[*]}{.metadata.name}: "+
		"{.spec.imagePullSecrets[*].name};{end}"),
		"ml-dev-env-0: registry-pull ml-dev-sa-dockercfg-", "ml-dev-env-1: registry-pull ml-dev-sa-dockercfg-")
	u.nowhereBut("my-keys", value)
	u.release("ml-dev-env-0", "release")
	u.end(name).succeeded()
	u.nowhereBut("my-keys", value)

	task, results := u.taskEnd(u.startTkn("task", "mlenv-train", "--param=script=e2e/quick.sh", "--param=env-secret=my-kyes"))
	u.equal("reason of a missing Secret", results["reason"], string(fail.InvalidInput))
	u.mustContain(results["message"], "my-kyes")
	if task.IsSuccessful() {
		u.Error("the run succeeded with a missing Secret")
	}
}

// nowhereBut fails if the value appears in an object other than its Secret, in a log, or in a file
// of the agents.
func (u trainer) nowhereBut(secret, value string) {
	u.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	check := func(what, text string) {
		if strings.Contains(text, value) || strings.Contains(text, encoded) {
			u.Errorf("the value of the Secret is in %s", what)
		}
	}
	kinds := "configmaps,pods,statefulsets,services,leases,persistentvolumeclaims,events,pipelineruns,taskruns,serviceaccounts"
	check("objects", u.kubectl("get", kinds, "--output=yaml"))
	check("other Secrets", u.kubectl("get", "secrets", "--field-selector=metadata.name!="+secret, "--output=yaml"))
	for pod := range strings.FieldsSeq(u.kubectl("get", "pods", "--output=name")) {
		check("the logs of "+pod, u.kubectl("logs", pod, "--all-containers"))
	}
	state := filepath.Join(u.volume("ml-dev-workspace"), ".mlenv")
	err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(value)) {
			u.Errorf("the value of the Secret is in %s", path)
		}
		return err
	})
	if err != nil {
		u.Fatal(err)
	}
}
