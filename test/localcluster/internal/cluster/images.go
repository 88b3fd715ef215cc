// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
)

// programImage is an image of one static program.
type programImage struct {
	name string
	// file is the path on this machine, and target the path in the image.
	file, target string
	entrypoint   []string
}

func programImages(programs map[string]string) []programImage {
	inPod := programs["in-pod"]
	images := []programImage{
		{name: "pause", file: filepath.Join(inPod, "pause"), target: "/pause", entrypoint: []string{"/pause"}},
		{name: "coredns", file: filepath.Join(inPod, "coredns"), target: "/coredns", entrypoint: []string{"/coredns"}},
	}
	for set, names := range map[string][]string{
		build.Tekton.Name: build.TektonPrograms, build.NewestTekton.Name: build.TektonPrograms, build.Triggers.Name: build.TriggersPrograms,
	} {
		if programs[set] == "" {
			continue // not asked for
		}
		for _, p := range names {
			target := "/ko-app/" + p
			images = append(images, programImage{name: set + "/" + p, file: filepath.Join(programs[set], p), target: target,
				entrypoint: []string{target}})
		}
	}
	// The manifests of these projects start a program with this name, or the image's entrypoint.
	const manager = "/manager"
	for set, names := range map[string][]string{build.KueueName: {"kueue"}, build.Peers.Name: {"trainer-controller-manager", "jobset"},
		build.MPI.Name: {"mpi-operator"}} {
		for _, p := range names {
			if folder := programs[set]; folder != "" {
				images = append(images, programImage{name: set + "/" + p, file: filepath.Join(folder, p), target: manager,
					entrypoint: []string{manager}})
			}
		}
	}
	return images
}

// tini is in every program image: some of Tekton's deployments start through it.
const tini = "/usr/bin/tini-static"

// assemblePrograms creates the images of programs that are not stored yet, and returns the references of all images by
// name.
func assemblePrograms(store *image.Store, work string, images []programImage) (map[string]string, error) {
	references := map[string]string{}
	for _, p := range images {
		// The name of the file's folder depends on the versions and sources that it was compiled from.
		digest, err := store.Ensure(p.name, p.file+" 3", func() (v1.Image, error) {
			layer, err := image.FilesLayer(work, map[string]string{p.target: p.file, "/sbin/tini": tini})
			if err != nil {
				return nil, err
			}
			return image.Assemble(v1.Config{Entrypoint: p.entrypoint, User: "65532:65532", Env: []string{"PATH=/sbin:/ko-app"}}, layer)
		})
		if err != nil {
			return nil, err
		}
		references[p.name] = registryReference(image.Image{Name: p.name, Digest: digest})
	}
	return references, nil
}

// builderImage has buildah.
const builderImage = "builder"

// buildPodImage is the image of the containers of build pods: the builder image with the program that stands in for
// OpenShift's.
const buildPodImage = "openshift/docker-builder"

func assembleBuildPod(store *image.Store, work, program string) (string, error) {
	base, key, err := store.Image(builderImage)
	if err != nil {
		return "", err
	}
	digest, err := store.Ensure(buildPodImage, key+" "+program, func() (v1.Image, error) {
		layer, err := image.FilesLayer(work, map[string]string{"/usr/bin/openshift-builder": program})
		if err != nil {
			return nil, err
		}
		layers, err := base.Layers()
		if err != nil {
			return nil, err
		}
		file, err := base.ConfigFile()
		if err != nil {
			return nil, err
		}
		config := file.Config
		config.Entrypoint, config.Cmd = []string{"/usr/bin/openshift-builder"}, nil
		return image.Assemble(config, append(layers, layer)...)
	})
	return registryReference(image.Image{Name: buildPodImage, Digest: digest}), err
}

const (
	// trainingImage is the image that the end-to-end tests train in.
	trainingImage = "training"
	// peersImage is the training image with the additional packages for MPI Operator.
	peersImage = "training-peers"
)

// rootfsImage is an image of a whole root file system. Its folder below images/
// has the last part of its name, without the tag.
type rootfsImage struct {
	name   string
	config v1.Config
	// usually is how long it takes on two cores, which compile at the same time.
	usually time.Duration
}

func (i rootfsImage) folder() string {
	name, _, _ := strings.Cut(path.Base(i.name), ":")
	return name
}

// rootfsImages are all images with a root file system. A base precedes the images that use it.
var rootfsImages = []rootfsImage{
	// The base of the flavour for this cluster.
	{"base/debian-torch:trixie", v1.Config{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USE_LIBUV=0", "LANG=C.UTF-8"},
		Cmd:        []string{"python3"},
		WorkingDir: "/",
	}, 130 * time.Second},
	// The base of the steps' image.
	{"base/git:latest", v1.Config{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
		WorkingDir: "/",
	}, 50 * time.Second},
	{builderImage, v1.Config{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
		Cmd: []string{"buildah", "version"},
	}, 50 * time.Second},
	{trainingImage, trainingConfig, 150 * time.Second},
	{peersImage, trainingConfig, 0},
}

var trainingConfig = v1.Config{
	Env: []string{
		"PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"DS_ACCELERATOR=cpu", "USE_LIBUV=0", "LANG=C.UTF-8",
	},
	Cmd:        []string{"python3"},
	WorkingDir: "/",
}

// writeCABundle writes the certificates that the cluster's pods trust: the machine's, which package mirrors may need,
// and the cluster's own.
func writeCABundle(path, clusterCA string) (string, error) {
	var bundle []byte
	for _, file := range []string{host.CABundle(), clusterCA} {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", errors.Join(errors.New("collecting trusted certificates"), err)
		}
		bundle = append(bundle, content...)
	}
	return string(bundle), os.WriteFile(path, bundle, 0o644)
}
