package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Where things are in the steps image.
const (
	stepsProgram = "ko-app/ml-dev-env"
	agentProgram = "mlenv-agent"
	rootsFile    = "etc/ssl/certs/ca-certificates.crt"
)

// user is who the steps run as where nobody says otherwise; OpenShift gives a
// random one of the same group.
const user = "65532:0"

// Steps are the names under which Tasks call the steps' one program.
func Steps() []string {
	return []string{"build-image", "check-fabric", "preflight", "provision", "sync-repo", "teardown", "train"}
}

// Links are all names that the program has in the image: the steps', and those that
// CronJobs call.
func Links() []string { return append(Steps(), "mlenv", "reap") }

// Contents are the files, on this machine, that a steps image is made of.
type Contents struct {
	// Program is the program of all steps, Agent what runs in the nodes: static ones for Linux on amd64.
	Program, Agent string
	// Roots is a bundle of certificate authorities, PEM; empty for none.
	Roots string
	// Version is the image's label.
	Version string
}

// StepsImage makes the image that Tasks run and that brings the agent to the
// nodes. There is nothing else in it: no shell, no other user's files. The same
// contents make the same digest.
func StepsImage(contents Contents) (v1.Image, error) {
	// A layer each, so that a change of one program is pulled alone.
	var layers [][]entry
	if contents.Roots != "" {
		layers = append(layers, []entry{folder("etc/"), folder("etc/ssl/"), folder("etc/ssl/certs/"), file(rootsFile, contents.Roots, 0o444)})
	}
	layers = append(layers, []entry{file(agentProgram, contents.Agent, 0o555)})
	program := []entry{folder("ko-app/"), file(stepsProgram, contents.Program, 0o555)}
	for _, name := range Links() {
		program = append(program, link("ko-app/"+name, "ml-dev-env"))
	}
	layers = append(layers, program)

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, entries := range layers {
		layer, err := newLayer(entries)
		if err != nil {
			return nil, fmt.Errorf("making the steps image: %w", err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, fmt.Errorf("making the steps image: %w", err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("making the steps image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{
		User:       user,
		Entrypoint: []string{"/" + stepsProgram},
		Env:        []string{"PATH=/ko-app"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "ml-dev-env steps",
			"org.opencontainers.image.version":  contents.Version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// entry is a file of a layer.
type entry struct {
	header tar.Header
	source string
}

func folder(name string) entry {
	return entry{header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func file(name, source string, mode int64) entry {
	return entry{header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, source: source}
}

func link(name, target string) entry {
	return entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

func newLayer(entries []entry) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		if err := e.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	// Not tarball's fastest: each node of a cluster pulls what is compressed once.
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching,
	)
}

func (e entry) write(w *tar.Writer) error {
	header := e.header
	header.ModTime = time.Unix(0, 0)
	header.Format = tar.FormatUSTAR
	if e.source == "" {
		return w.WriteHeader(&header)
	}
	content, err := os.ReadFile(e.source)
	if err != nil {
		return err
	}
	header.Size = int64(len(content))
	if err := w.WriteHeader(&header); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
