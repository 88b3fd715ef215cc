// SPDX-License-Identifier: Apache-2.0

package buildcontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/buildapi"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/builder"
)

// Names of the build pod's containers, as on OpenShift.
const (
	manageDockerfile = "manage-dockerfile"
	dockerBuild      = "docker-build"
)

// week is the maximum duration of a build without a deadline, in seconds.
const week = 7 * 24 * 60 * 60

// podFor returns the pod of a Docker strategy build, after its references are resolved to images and its secrets are
// known.
func podFor(build *buildv1.Build, config Config, diskSize string) (*corev1.Pod, error) {
	content, err := json.Marshal(build)
	if err != nil {
		return nil, fmt.Errorf("writing the build into its pod: %w", err)
	}
	yes, deadline := true, int64(week)
	if build.Spec.CompletionDeadlineSeconds != nil {
		deadline = *build.Spec.CompletionDeadlineSeconds
	}
	docker := build.Spec.Strategy.DockerStrategy
	env := []corev1.EnvVar{{Name: "BUILD", Value: string(content)}, {Name: "LANG", Value: "C.utf8"},
		{Name: builder.InsecureRegistryVariable, Value: config.Registry}}
	for _, name := range slices.Sorted(maps.Keys(config.Proxies)) {
		env = append(env, corev1.EnvVar{Name: name, Value: config.Proxies[name]})
	}
	env = append(env, trustedEnv(docker.Env)...)
	if diskSize != "" {
		env = append(env, corev1.EnvVar{Name: builder.DiskSizeVariable, Value: diskSize})
	}
	container := func(name, command string, privileged bool) corev1.Container {
		c := corev1.Container{
			Name: name, Image: config.Image, Args: []string{command},
			Env:                      append([]corev1.EnvVar(nil), env...),
			ImagePullPolicy:          corev1.PullIfNotPresent,
			Resources:                build.Spec.Resources,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts:             []corev1.VolumeMount{{Name: "buildworkdir", MountPath: builder.WorkDir}},
		}
		root := int64(0)
		c.SecurityContext = &corev1.SecurityContext{RunAsUser: &root}
		if privileged {
			c.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}
		return c
	}
	p := &podMaker{pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: buildapi.PodName(build.Name), Namespace: build.Namespace,
			Labels:          map[string]string{buildv1.BuildLabel: build.Name[:min(len(build.Name), 63)]},
			Annotations:     map[string]string{buildv1.BuildAnnotation: build.Name},
			OwnerReferences: []metav1.OwnerReference{ownerOf(build)},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName:    build.Spec.ServiceAccount,
			RestartPolicy:         corev1.RestartPolicyNever,
			NodeSelector:          build.Spec.NodeSelector,
			ActiveDeadlineSeconds: &deadline,
		},
	}}
	p.emptyDir("buildworkdir")
	p.emptyDir("container-storage-root")

	main := container(dockerBuild, builder.CommandBuild, true)
	p.storage(&main)
	p.registrySecrets(&main, build)
	if err := p.buildVolumes(&main, docker.Volumes); err != nil {
		return nil, err
	}
	receive := container(buildapi.SourceContainer, builder.CommandSource, false)
	receive.Stdin, receive.StdinOnce = true, true
	p.pod.Spec.InitContainers = []corev1.Container{receive, container(manageDockerfile, builder.CommandDockerfile, false)}
	p.pod.Spec.Containers = []corev1.Container{main}
	return p.pod, nil
}

func ownerOf(build *buildv1.Build) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: buildv1.GroupVersion.String(), Kind: "Build", Name: build.Name, UID: build.UID, Controller: &yes}
}

func ownedBy(pod *corev1.Pod, build *buildv1.Build) bool {
	for _, o := range pod.OwnerReferences {
		if o.Kind == "Build" && o.UID == build.UID {
			return true
		}
	}
	return false
}

// trustedEnv returns the strategy's variables that reach the builder itself.
func trustedEnv(env []corev1.EnvVar) []corev1.EnvVar {
	var trusted []corev1.EnvVar
	for _, v := range env {
		for _, name := range buildv1.WhitelistEnvVarNames {
			if v.Name == name && v.ValueFrom == nil && name != "LANG" {
				trusted = append(trusted, v)
			}
		}
	}
	return trusted
}

type podMaker struct{ pod *corev1.Pod }

func (p *podMaker) emptyDir(name string) {
	p.volume(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
}

func (p *podMaker) volume(name string, source corev1.VolumeSource) {
	for _, v := range p.pod.Spec.Volumes {
		if v.Name == name {
			return
		}
	}
	p.pod.Spec.Volumes = append(p.pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
}

func (p *podMaker) mount(c *corev1.Container, name, at string, source corev1.VolumeSource) {
	p.volume(name, source)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
}

func (p *podMaker) secret(c *corev1.Container, secret, suffix, at string) {
	mode := int32(0o600)
	p.mount(c, volumeName(secret, suffix), at, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: &mode}})
}

// volumeName returns a volume's name for an object's name.
func volumeName(object, suffix string) string {
	object = strings.ReplaceAll(object, ".", "-")
	return object[:min(len(object), 62-len(suffix))] + "-" + suffix
}

func (p *podMaker) storage(c *corev1.Container) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "container-storage-root", MountPath: builder.StorageDir})
}

func (p *podMaker) registrySecrets(c *corev1.Container, build *buildv1.Build) {
	if push := build.Spec.Output.PushSecret; push != nil {
		p.secret(c, push.Name, "push", builder.PushSecretDir)
	}
	if pull := build.Spec.Strategy.DockerStrategy.PullSecret; pull != nil {
		p.secret(c, pull.Name, "pull", builder.PullSecretDir)
	}
}

func (p *podMaker) buildVolumes(c *corev1.Container, volumes []buildv1.BuildVolume) error {
	for _, v := range volumes {
		source := corev1.VolumeSource{Secret: v.Source.Secret, ConfigMap: v.Source.ConfigMap, CSI: v.Source.CSI}
		if source == (corev1.VolumeSource{}) {
			return fmt.Errorf("volume %s of the build has no source", v.Name)
		}
		p.mount(c, volumeName(v.Name, "user-build-volume"), path.Join(builder.VolumesDir, v.Name), source)
	}
	return nil
}
