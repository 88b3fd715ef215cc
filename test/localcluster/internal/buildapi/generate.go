// SPDX-License-Identifier: Apache-2.0

package buildapi

import (
	"fmt"
	"strconv"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodName returns the name of the build's pod.
func PodName(build string) string { return build + "-build" }

// Causes of builds, as OpenShift words them.
const (
	CauseManual = "Manually triggered"
	CauseConfig = "Build configuration change"
)

// BuilderAccount is the default service account of builds.
const BuilderAccount = "builder"

// labelValue shortens a name to the maximum length of a label's value.
func labelValue(name string) string { return name[:min(len(name), 63)] }

// generate returns the next Build of the BuildConfig for the request. The BuildConfig's lastVersion must already be the
// new Build's number.
func generate(config *buildv1.BuildConfig, request *buildv1.BuildRequest) (*buildv1.Build, error) {
	yes, now := true, metav1.Now()
	spec := config.Spec.CommonSpec.DeepCopy()
	if spec.ServiceAccount == "" {
		spec.ServiceAccount = BuilderAccount
	}
	// The source of a binary build is in the request, not in the BuildConfig.
	spec.Source.Binary = request.Binary.DeepCopy()
	spec.Revision = request.Revision.DeepCopy()
	build := &buildv1.Build{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("%s-%d", config.Name, config.Status.LastVersion),
			Namespace:   config.Namespace,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: buildv1.GroupVersion.String(), Kind: "BuildConfig",
				Name: config.Name, UID: config.UID, Controller: &yes,
			}},
		},
		Spec: buildv1.BuildSpec{CommonSpec: *spec, TriggeredBy: request.TriggeredBy},
		Status: buildv1.BuildStatus{
			Phase: buildv1.BuildPhaseNew,
			Conditions: []buildv1.BuildCondition{{
				Type: buildv1.BuildConditionType(buildv1.BuildPhaseNew), Status: corev1.ConditionTrue, LastUpdateTime: now, LastTransitionTime: now,
			}},
			Config: &corev1.ObjectReference{Kind: "BuildConfig", Namespace: config.Namespace, Name: config.Name},
		},
	}
	// The BuildConfig's labels override the request's, and the system's override both.
	for _, from := range []map[string]string{request.Labels, config.Labels, {
		buildv1.BuildConfigLabelDeprecated: labelValue(config.Name),
		buildv1.BuildConfigLabel:           labelValue(config.Name),
		buildv1.BuildRunPolicyLabel:        string(config.Spec.RunPolicy),
	}} {
		for k, v := range from {
			build.Labels[k] = v
		}
	}
	for k, v := range request.Annotations {
		build.Annotations[k] = v
	}
	build.Annotations[buildv1.BuildConfigAnnotation] = config.Name
	build.Annotations[buildv1.BuildNumberAnnotation] = strconv.FormatInt(config.Status.LastVersion, 10)

	docker := build.Spec.Strategy.DockerStrategy
	if docker == nil {
		return nil, fmt.Errorf("can't instantiate from BuildConfig %s/%s: this stand-in builds by Docker strategy only", config.Namespace,
			config.Name)
	}
	docker.Env = merge(docker.Env, request.Env)
	if options := request.DockerStrategyOptions; options != nil {
		docker.BuildArgs = merge(docker.BuildArgs, options.BuildArgs)
	}
	return build, nil
}

// merge returns the old variables, with new variables in place of old ones of the same name or at the end.
func merge(old, added []corev1.EnvVar) []corev1.EnvVar {
	merged := append([]corev1.EnvVar(nil), old...)
next:
	for _, v := range added {
		for i := range merged {
			if merged[i].Name == v.Name {
				merged[i] = v
				continue next
			}
		}
		merged = append(merged, v)
	}
	return merged
}
