// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/provision"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/teardown"
)

// pullSecretsLate provisions from an image stream in a namespace whose service accounts get their pull secrets later than
// provision waits. Then OpenShift's Secret is replaced, and a new pod pulls again.
func pullSecretsLate(u trainer) {
	// Account default has its Secret, by which provision knows that the other account gets one.
	u.awaitPullSecret()
	u.kubectl("annotate", "namespace", u.namespace, "localcluster/pull-secret-delay=40s")
	u.kubectl("delete", "serviceaccount", "ml-dev-sa")          // which install has created, and provision creates if it is missing
	image := registryHost + "/" + u.namespace + "/small:latest" // each new pod pulls it
	u.moveBase(image, smallBase)
	// This Secret does not apply to image streams. It makes the StatefulSet name pull secrets.
	u.privateSecret("mine")
	named := []string{namedImage, "  name: " + image + "\n  pull_secret: mine\n"}
	replaced := "Replacing pod ml-dev-env-0: it was created before service account ml-dev-sa had its pull secrets."
	u.mustContain(u.provisionByHand(named...), "Waiting until service account ml-dev-sa has its pull secrets.",
		"got no pull secrets within 30s", replaced, "is ready after")

	secrets := func() string {
		return u.kubectl("get", "pod/ml-dev-env-0", "--output=jsonpath={.spec.imagePullSecrets[*].name}")
	}
	old := secrets()
	u.mustContain(old, "mine ml-dev-sa-dockercfg-")
	u.kubectl("delete", "secret", strings.Fields(old)[1])
	u.kubectl("delete", "pod", "ml-dev-env-0")
	u.mustContain(u.provisionByHand(named...), replaced, "is ready after")
	if got := secrets(); got == old {
		u.Errorf("the new pod has the pull secrets %s, one of which was replaced", got)
	}
	u.teardownByHand()
}

// stepsTooEarly installs and trains at once in new namespaces, whose service accounts get their pull secrets late. Only with these
// can the image of the steps be pulled.
func stepsTooEarly(u trainer) {
	file := u.clusterFile()
	fresh := func(suffix, delay string) trainer {
		made := u
		made.namespace += suffix
		u.applyText(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, annotations: {localcluster/pull-secret-delay: %s}}}",
			made.namespace, delay))
		u.Cleanup(func() {
			if u.Failed() {
				made.dump()
			}
			if out, err := run(u.T, nil, stateDir+"/bin/kubectl", "delete", "namespace", made.namespace, "--wait=false"); err != nil {
				u.Errorf("deleting the namespace: %v: %s", err, out)
			}
		})
		made.takeSteps()
		return made
	}
	const waits = "Waiting until service account mlenv-pipeline has its pull secrets."
	by := fresh("-mlenv", "5s")
	_, problems := by.says("", 0, "install", file, "--steps-image="+by.steps)
	by.mustContain(problems, waits)
	by.says("", 0, append([]string{"run", u.repo, "e2e/quick.sh", "--nodes=1"}, runFlags()...)...)

	applied := fresh("-applied", "8s")
	objects, _ := applied.says("", 0, "install", file, "--steps-image="+applied.steps, "--output=yaml")
	applied.applyText(objects)
	e := applied.end(applied.start("e2e/quick.sh", "--param=launcher=command", "--param=nodes=1", oneGPU))
	if e.receipt.Verdict == receipt.Succeeded { // on a busy machine the secrets may come first
		return
	}
	e.equal("the receipt's reason", e.receipt.Reason, string(fail.ImageUnavailable))
	next := "mlenv run --like " + e.run.Name
	e.mustContain(e.receipt.Message, "image "+applied.steps, "the pod was created before service account mlenv-pipeline got its pull "+
		"secrets (mlenv-pipeline-dockercfg-", next)
	if strings.Contains(e.receipt.Message, `""`) {
		e.Errorf("an empty name is in %q", e.receipt.Message)
	}
	applied.says("", 0, strings.Fields(next)[1:]...)
}

// privateSecret creates a Secret with which private repositories of the registry are pulled.
func (u trainer) privateSecret(name string) {
	u.Helper()
	username, password := u.registryCredentials()
	u.kubectl("create", "secret", "docker-registry", name, "--docker-server="+registryHost, "--docker-username="+username,
		"--docker-password="+password)
}

// slowPull provisions from a registry that is so slow that the log reports more than once that the pull continues.
func slowPull(u trainer) {
	base, err := crane.Pull(smallBase, crane.WithContext(u.Context()))
	if err != nil {
		u.Fatal(err)
	}
	layer, err := random.Layer(120<<20, types.OCILayer) // a minute
	if err != nil {
		u.Fatal(err)
	}
	large, err := mutate.AppendLayers(base, layer)
	if err != nil {
		u.Fatal(err)
	}
	const image = registryHost + "/slow/e2e-large:1"
	if err := crane.Push(large, image, crane.WithContext(u.Context())); err != nil {
		u.Fatal(err)
	}
	out := u.provisionByHand(namedImage, "  name: "+image+"\n"+withPullSecret)
	u.mustContain(out, "is ready after")
	if lines := regexp.MustCompile(`(?m)^.*pulling image `+regexp.QuoteMeta(image)+`.*$`).FindAllString(out, -1); len(lines) < 2 ||
		lines[0] == lines[1] {
		u.Errorf("the log has %d lines about the pull, want several with different times:\n%s", len(lines), out)
	}
	u.teardownByHand()
}

// provisionByHand provisions one node from this machine, with a changed cluster file, and returns the log.
func (u trainer) provisionByHand(oldNew ...string) string {
	u.Helper()
	var out bytes.Buffer
	args := []string{
		"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "--steps-image=" + u.steps, "--nodes=1", "--gpus-per-node=1",
		"--keep-for=30m",
		"--cluster-file=" + u.clusterFile(oldNew...),
	}
	if code := command.Run(u.Context(), provision.Command(), args, &out, &out); code != command.Done {
		u.Fatalf("provision ended with %d:\n%s", code, out.String())
	}
	return out.String()
}

func (u trainer) teardownByHand() {
	u.Helper()
	var out bytes.Buffer
	if code := command.Run(u.Context(), teardown.Command(), []string{"--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace}, &out,
		&out); code != command.Done {
		u.Errorf("teardown ended with %d:\n%s", code, out.String())
	}
}

// privateSteps uses a steps image that is pulled only with a Secret, which is linked to the service account of the steps: once
// in a run, and once from outside the cluster.
func privateSteps(u trainer) {
	username, password := u.registryCredentials()
	image, err := crane.Pull(u.steps, crane.WithContext(u.Context()))
	if err != nil {
		u.Fatal(err)
	}
	u.steps = strings.Replace(u.steps, "/"+u.namespace+"/", "/private/e2e-", 1)
	// The account of the private repositories may not pull from the namespace.
	if err := crane.Push(image, u.steps, crane.WithAuth(&authn.Basic{Username: username, Password: password}),
		crane.WithContext(u.Context())); err != nil {
		u.Fatal(err)
	}
	u.privateSecret("steps-key")
	u.installChanged()
	u.kubectl("patch", "serviceaccount", launch.ServiceAccount, `--patch={"imagePullSecrets":[{"name":"steps-key"}]}`)
	u.end(u.start("e2e/quick.sh", byShell, oneGPU, "--param=nodes=1")).succeeded()
	u.mustContain(u.provisionByHand(), "is ready after")
	u.teardownByHand()
}
