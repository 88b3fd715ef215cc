//go:build e2e

package e2e

import (
	"bytes"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// pullSecretsLate provisions from an image stream in a namespace whose service accounts get their pull secrets later than
// provision waits. Then OpenShift's Secret is replaced, and a new pod pulls again.
func pullSecretsLate(u trainer) {
	u.kubectl("annotate", "namespace", u.namespace, "localcluster/pull-secret-delay=40s")
	image := registryHost + "/" + u.namespace + "/small:latest" // which each new pod pulls
	u.moveBase(image, smallBase)
	// A Secret that is of no use for image streams, so that the StatefulSet names pull secrets.
	u.privateSecret("mine")
	provisions := func(texts ...string) {
		u.Helper()
		var out bytes.Buffer
		args := []string{
			"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "--steps-image=" + u.steps, "--nodes=1", "--gpus-per-node=1", "--keep-for=30m",
			"--cluster-file=" + u.clusterFile(namedImage, "  name: "+image+"\n  pull_secret: mine\n"),
		}
		if code := step.Run(u.Context(), provision.Command(), args, &out, &out); code != step.Done {
			u.Fatalf("provision ended with %d:\n%s", code, out.String())
		}
		u.mustContain(out.String(), texts...)
	}
	replaced := "Replacing pod ml-dev-env-0: it was created before service account ml-dev-sa had its pull secrets."
	provisions("Waiting until service account ml-dev-sa has its pull secrets.", "got no pull secrets within 30s", replaced, "is ready after")

	secrets := func() string {
		return u.kubectl("get", "pod/ml-dev-env-0", "--output=jsonpath={.spec.imagePullSecrets[*].name}")
	}
	old := secrets()
	u.mustContain(old, "mine ml-dev-sa-dockercfg-")
	u.kubectl("delete", "secret", strings.Fields(old)[1])
	u.kubectl("delete", "pod", "ml-dev-env-0")
	provisions(replaced, "is ready after")
	if got := secrets(); got == old {
		u.Errorf("the new pod has the pull secrets %s, one of which was replaced", got)
	}
	var out bytes.Buffer
	if code := step.Run(u.Context(), teardown.Command(), []string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}, &out, &out); code != step.Done {
		u.Errorf("teardown ended with %d:\n%s", code, out.String())
	}
}

// privateSecret creates a Secret with which private repositories of the registry are pulled.
func (u trainer) privateSecret(name string) {
	u.Helper()
	username, password := u.registryCredentials()
	u.kubectl("create", "secret", "docker-registry", name, "--docker-server="+registryHost, "--docker-username="+username, "--docker-password="+password)
}
