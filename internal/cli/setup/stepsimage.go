// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
	imageclient "github.com/openshift/client-go/image/clientset/versioned"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/install/pyspy"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

const (
	// stepsTag is the steps image's tag in the ImageStream ml-dev-env.
	stepsTag = "mlenv-steps"
	// stepsBase is the base of the steps image, as in .ko.yaml.
	stepsBase = "cgr.dev/chainguard/git:latest"
	// noImage is where the Tasks of main name a steps image, which exists in no registry.
	noImage = "registry.invalid/"
	// maxProgram bounds what is read of a program, in bytes: mlenv has 95 MB.
	maxProgram = 1 << 30
	// mlenvPackage is the package of the program mlenv.
	mlenvPackage = "github.com/ml-dev-env/ml-dev-env/cmd/mlenv"
)

// stepsImage is the steps image of an installation that names none: the release's if the cluster can pull it, else one that the cluster
// builds of the program mlenv, which contains the steps and the agent.
type stepsImage struct {
	// files has the Tasks and Pipelines.
	files fs.FS
	// program is mlenv for Linux, "" for the running one.
	program, base string
	log           *slog.Logger
}

// findImage returns the image. With dryRun it builds none, and returns the last one or, without a digest, the one that it would build.
// Errors: BuildUnavailable if there is no image and the cluster builds none, InvalidInput for a program that cannot run there, and those of
// a build.
func (s stepsImage) findImage(ctx context.Context, clients *kube.Clients, file cluster.File, dryRun bool) (string, error) {
	images, err := imageclient.NewForConfig(clients.Config)
	if err != nil {
		return "", fail.Becausef(fail.InvalidInput, "creating a client for images: %w", err)
	}
	released, err := s.released()
	if err != nil {
		return "", err
	}
	_, noBuilds := clients.Kube.Discovery().ServerResourcesForGroupVersion(buildv1.GroupVersion.String())
	if released != "" {
		cannot := buildimage.CannotImport(ctx, images.ImageV1(), clients.Namespace, released)
		if cannot == nil || apierrors.IsNotFound(noBuilds) {
			return released, nil
		}
		s.log.Warn(fmt.Sprintf("The cluster cannot pull the release's steps image %s, so it builds one. (%v)", released, cannot))
	}
	if apierrors.IsNotFound(noBuilds) {
		return "", fail.Advise(fail.Becausef(fail.BuildUnavailable, "building the steps image: this cluster has no API %s", buildv1.GroupVersion),
			"in a checkout, push it to a registry that the cluster pulls from: make steps-image PUSH=REGISTRY/REPOSITORY; then name what that "+
				"prints: mlenv install FILE --steps-image=IMAGE")
	}
	if dryRun {
		if built, err := buildimage.LastBuilt(ctx, images.ImageV1(), clients.Namespace, stepsTag); err == nil {
			return built.Reference, nil
		}
		return buildimage.Tagged(clients.Namespace, stepsTag), nil
	}
	return s.build(ctx, clients, file)
}

// released returns the steps image that a release's Tasks name, "" for those of main.
func (s stepsImage) released() (string, error) {
	var pipeline v1.Pipeline
	if err := bundle.Read(s.files, "pipelines", launch.Pipeline, &pipeline); err != nil {
		return "", err
	}
	image := launch.ParamValue(&pipeline, nil, "steps-image")
	if strings.HasPrefix(image, noImage) {
		image = ""
	}
	return image, nil
}

func (s stepsImage) build(ctx context.Context, clients *kube.Clients, file cluster.File) (string, error) {
	folder, err := claimfile.MkdirTemp("", "mlenv-steps-")
	if err != nil {
		return "", err
	}
	defer claimfile.RemoveFolder(folder)
	platform, err := s.lay(ctx, folder)
	if err != nil {
		return "", err
	}
	if server, err := clients.Kube.Discovery().ServerVersion(); err == nil && server.Platform != platform {
		s.log.Warn(fmt.Sprintf("The steps image is for %s, and the cluster's API server runs on %s: its pods need nodes of %[1]s.", platform,
			server.Platform))
	}
	file.Image.BuildResources = cluster.BuildResources{} // those of the training image, which compiles
	options := buildimage.Defaults()
	options.Cluster, options.Folder, options.Flavour = file, folder, stepsTag
	image, err := buildimage.Build(ctx, clients, s.log, options)
	if reason := fail.ReasonOf(err); reason == fail.NetworkFailed || reason == fail.ImageUnavailable {
		err = fail.Advise(err, "name a base that the cluster can pull, such as a copy of %s: mlenv install FILE --base=IMAGE; or a finished "+
			"image: mlenv install FILE --steps-image=IMAGE", stepsBase)
	}
	return image.Reference, err
}

// lay writes the folder of the build, as ko lays out the image, and returns the program's platform, such as linux/amd64.
func (s stepsImage) lay(ctx context.Context, folder string) (platform string, err error) {
	program := s.program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return "", err
		}
	}
	platform, err = platformOf(program)
	if err != nil {
		return "", fail.Advise(fail.Becausef(fail.InvalidInput, "building the steps image of %s: %w", program, err),
			"name the program of a release for Linux: mlenv install FILE --program=mlenv-linux-amd64 (in a checkout: "+
				"CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -o mlenv-linux-amd64 ./cmd/mlenv); or name an image: "+
				"mlenv install FILE --steps-image=IMAGE")
	}
	content, err := claimfile.Read(program, maxProgram)
	if err != nil {
		return "", err
	}
	const data = "/var/run/ko" // where ko puts what comes beside a program
	root := filepath.Join(folder, "root")
	programs := filepath.Join(root, filepath.Dir(agent.StepsProgram))
	agents := filepath.Join(root, data, strings.ReplaceAll(platform, "/", "-"))
	dockerfile := fmt.Sprintf("FROM %s\nCOPY root/ /\nENV KO_DATA_PATH=%s\nUSER 65532:0\nENTRYPOINT [%q]\n", s.base, data, agent.StepsProgram)
	if err := errors.Join(
		os.MkdirAll(programs, 0o755), os.MkdirAll(agents, 0o755),
		os.WriteFile(filepath.Join(root, agent.StepsProgram), content, 0o755),
		os.Symlink(agent.StepsProgram, filepath.Join(agents, agent.ProgramName)),
		os.WriteFile(filepath.Join(folder, "Dockerfile"), []byte(dockerfile), 0o644),
	); err != nil {
		return "", err
	}
	if err := pyspy.Write(ctx, programs, filepath.Join(root, data, "licenses"), platform); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		s.log.Warn(fmt.Sprintf("The steps image gets no py-spy, so only training images that have it show the stacks of a rank. (%v)", err))
	}
	return platform, nil
}

// platformOf returns the platform of a program that is mlenv, for Linux and in one file.
func platformOf(program string) (string, error) {
	file, err := claimfile.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := buildinfo.Read(file)
	if err != nil {
		return "", fmt.Errorf("it is not a Go program: %w", err)
	}
	setting := func(key string) string {
		i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == key })
		if i < 0 {
			return ""
		}
		return info.Settings[i].Value
	}
	switch {
	case info.Path != mlenvPackage:
		return "", fmt.Errorf("it is the program of %s: want that of %s", info.Path, mlenvPackage)
	case setting("GOOS") != "linux":
		return "", fmt.Errorf("it is a program for %s: want one for linux", setting("GOOS"))
	}
	parts, err := elf.NewFile(file)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(parts.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "", errors.New("it needs the C library of the machine that compiled it: want one that was compiled with CGO_ENABLED=0")
	}
	return "linux/" + setting("GOARCH"), nil
}
