// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Paths in the steps image.
const (
	stepsProgram = "ko-app/ml-dev-env"
	agentProgram = "mlenv-agent" // it installs itself, and py-spy from its own folder
	rootsFile    = "etc/ssl/certs/ca-certificates.crt"
	// licencesFolder is the one that Red Hat's certification of images expects.
	licencesFolder = "licenses"
)

// user is the steps' default user; OpenShift assigns a random one of the same group.
const user = "65532:0"

// Steps returns the names by which Tasks call the steps' program.
func Steps() []string {
	return []string{"build-image", "check-fabric", "preflight", "provision", "sync-repo", "teardown", "train"}
}

// Links returns all names of the program in the image: the steps' names, and those that CronJobs call.
func Links() []string { return append(Steps(), "mlenv", "reap") }

// Contents are the parts of a steps image of one platform.
type Contents struct {
	Source   Source
	Platform v1.Platform
	// Base is the image below; it has git and git-lfs.
	Base Base
	// Program is the file of the steps' program, Agent the agent's; both are static.
	Program, Agent string
	// Roots are certificate authorities, PEM; empty for none.
	Roots []byte
	// Spy is py-spy; without a program for none.
	Spy Spy
	// Licences is the folder of the terms of what is linked into the programs, as go-licenses saves them; "" for none.
	Licences string
}

// StepsImage builds the image that Tasks run and that brings the agent to the nodes. It is reproducible.
func StepsImage(contents Contents) (_ v1.Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("building the steps image: %w", err)
		}
	}()
	// One layer for each, so that nodes pull only what has changed.
	var layers [][]entry
	if len(contents.Roots) > 0 {
		layers = append(layers, []entry{file(rootsFile, contents.Roots, 0o444)})
	}
	if contents.Licences != "" {
		texts, err := filesBelow(contents.Licences, licencesFolder, 0o444)
		if err != nil {
			return nil, err
		}
		layers = append(layers, texts)
	}
	agent, err := readFile(agentProgram, contents.Agent, 0o555)
	if err != nil {
		return nil, err
	}
	layers = append(layers, []entry{agent})
	if spy := contents.Spy; len(spy.Program) > 0 {
		layers = append(layers, append(spy.terms(), file(spyName, spy.Program, 0o555)))
	}
	steps, err := readFile(stepsProgram, contents.Program, 0o555)
	if err != nil {
		return nil, err
	}
	program := []entry{steps}
	for _, name := range Links() {
		program = append(program,
			entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: "ko-app/" + name, Linkname: "ml-dev-env", Mode: 0o777}})
	}
	layers = append(layers, program)

	image := empty.Image
	if contents.Base.image != nil {
		if image, err = contents.Base.image(contents.Platform); err != nil {
			return nil, err
		}
	}
	image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, entries := range layers {
		layer, err := newLayer(folders(entries))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = contents.Platform.OS, contents.Platform.Architecture, contents.Platform.Variant
	config.Created = v1.Time{Time: contents.Source.Changed}
	labels := contents.Base.labels(contents.Source.labels("ml-dev-env steps"))
	config.Config = v1.Config{
		User:       user,
		Entrypoint: []string{"/" + stepsProgram},
		Env:        environment(config.Config.Env),
		Labels:     labels,
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, labels).(v1.Image), nil
}

const projectLicence = "Apache-2.0"

// labels returns OCI's annotations, which images have as labels too, without the unknown ones. See
// https://github.com/opencontainers/image-spec/blob/main/annotations.md.
func (s Source) labels(title string) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":    title,
		"org.opencontainers.image.version":  s.Version,
		"org.opencontainers.image.licenses": projectLicence,
		"org.opencontainers.image.source":   home,
	}
	if s.Revision != "" {
		all["org.opencontainers.image.revision"] = s.Revision
		all["org.opencontainers.image.created"] = s.Changed.Format(time.RFC3339)
	}
	return all
}

// StepsIndex returns the index of the platforms' images.
func StepsIndex(source Source, base Base, images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("building the index of the steps image: %w", err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return mutate.Annotations(index, base.labels(source.labels("ml-dev-env steps"))).(v1.ImageIndex), nil
}
