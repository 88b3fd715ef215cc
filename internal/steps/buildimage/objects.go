// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	buildapply "github.com/openshift/client-go/build/applyconfigurations/build/v1"
	imageapply "github.com/openshift/client-go/image/applyconfigurations/image/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// Names and labels of a build's objects.
const (
	// StreamName is the ImageStream; its tags are the flavours.
	StreamName = "ml-dev-env"
	// inputsLabel is a label of the image with the fingerprint of its inputs.
	inputsLabel = project.ReverseDomain + "inputs"
	// inputsWithoutBasesLabel leaves the bases' digests out.
	inputsWithoutBasesLabel = project.ReverseDomain + "inputs-without-bases"
	// baseDigestsLabel lists the bases as text.
	baseDigestsLabel = project.ReverseDomain + "bases"
	// flavourLabel marks the BuildConfig.
	flavourLabel = project.LabelPrefix + "flavour"
	// trustedCADir is a mount in the build, which does not stay in the image.
	trustedCADir = "/etc/mlenv-ca"
	trustedCA    = trustedCADir + "/" + cluster.TrustedCAKey
)

// trustedCAArgs are the build arguments with the CAs that pip, OpenSSL, requests, curl, npm and git trust. Only RUN sees an
// argument.
var trustedCAArgs = []string{"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}

func labels() map[string]string {
	return map[string]string{"app.kubernetes.io/managed-by": "ml-dev-env", "app.kubernetes.io/part-of": "ml-dev-env"}
}

func configName(flavour string) string {
	return StreamName + "-" + strings.ReplaceAll(flavour, ".", "-")
}

// imageTag returns the image's tag: the flavour, with the variant if there is one.
func (p plan) imageTag() string {
	if p.variant == "" {
		return p.flavour
	}
	return p.flavour + "-" + p.variant
}

type plan struct {
	namespace, flavour string
	// variant is "" for the image that the flavour's tag means, and varies the reason for another tag.
	variant, varies string
	inputs          inputs
	// passing are arguments that do not change the image: proxies and trust.
	passing    []Arg
	pullSecret string
	pushSecret string
	// trust is the ConfigMap with the certificates to trust, empty for none.
	trust     string
	resources cluster.BuildResources
	deadline  time.Duration
}

func (p plan) imageStream() *imageapply.ImageStreamApplyConfiguration {
	return imageapply.ImageStream(StreamName, p.namespace).WithLabels(labels())
}

// buildConfig has the Docker strategy with binary source: each build receives the folder. It has no trigger, because a
// ConfigChange trigger would start a build at the first apply that no caller follows. Builds of one flavour run in parallel:
// OpenShift cancels a build with a folder that would wait for another one for five minutes.
func (p plan) buildConfig() *buildapply.BuildConfigApplyConfiguration {
	docker := buildapply.DockerBuildStrategy().
		WithBuildArgs(environment(p.inputs.BuildArgs, p.passing)...).
		WithEnv(environment(p.inputs.Env)...)
	if p.pullSecret != "" {
		docker.WithPullSecret(corev1.LocalObjectReference{Name: p.pullSecret})
	}
	if p.trust != "" {
		docker.WithVolumes(buildapply.BuildVolume().WithName("trusted-ca").
			WithSource(buildapply.BuildVolumeSource().
				WithType(buildv1.BuildVolumeSourceTypeConfigMap).
				WithConfigMap(corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: p.trust},
					Items:                []corev1.KeyToPath{{Key: cluster.TrustedCAKey, Path: cluster.TrustedCAKey}},
				})).
			WithMounts(buildapply.BuildVolumeMount().WithDestinationPath(trustedCADir)))
	}
	output := buildapply.BuildOutput().
		WithTo(corev1.ObjectReference{Kind: "ImageStreamTag", Name: StreamName + ":" + p.imageTag()}).
		WithImageLabels(
			buildapply.ImageLabel().WithName(inputsLabel).WithValue(p.inputs.fingerprint()),
			buildapply.ImageLabel().WithName(inputsWithoutBasesLabel).WithValue(p.inputs.withoutBases()),
			buildapply.ImageLabel().WithName(baseDigestsLabel).WithValue(p.inputs.basesText()))
	if p.pushSecret != "" {
		output.WithPushSecret(corev1.LocalObjectReference{Name: p.pushSecret})
	}
	spec := buildapply.BuildConfigSpec().
		WithRunPolicy(buildv1.BuildRunPolicyParallel).
		WithSource(buildapply.BuildSource().WithType(buildv1.BuildSourceBinary).WithBinary(buildapply.BinaryBuildSource())).
		WithStrategy(buildapply.BuildStrategy().WithType(buildv1.DockerBuildStrategyType).WithDockerStrategy(docker)).
		WithOutput(output).
		WithSuccessfulBuildsHistoryLimit(5).WithFailedBuildsHistoryLimit(5).
		WithCompletionDeadlineSeconds(int64(p.deadline.Seconds()))
	if resources := requirements(p.resources); len(resources.Requests)+len(resources.Limits) > 0 {
		spec.WithResources(resources)
	}
	named := labels()
	named[flavourLabel] = p.flavour
	return buildapply.BuildConfig(configName(p.flavour), p.namespace).WithLabels(named).WithSpec(spec)
}

func environment(lists ...[]Arg) (variables []corev1.EnvVar) {
	for _, list := range lists {
		for _, arg := range list {
			variables = append(variables, corev1.EnvVar{Name: arg.Name, Value: arg.Value})
		}
	}
	return variables
}

func requirements(r cluster.BuildResources) (all corev1.ResourceRequirements) {
	amounts := func(a cluster.BuildResourceList) corev1.ResourceList {
		list := corev1.ResourceList{}
		for name, quantity := range map[corev1.ResourceName]resource.Quantity{
			corev1.ResourceMemory: a.Memory.Quantity, corev1.ResourceCPU: a.CPU.Quantity,
			corev1.ResourceEphemeralStorage: a.EphemeralStorage.Quantity,
		} {
			if !quantity.IsZero() {
				list[name] = quantity
			}
		}
		return list
	}
	all.Requests, all.Limits = amounts(r.Requests), amounts(r.Limits)
	return all
}
