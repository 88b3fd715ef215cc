//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	"golang.org/x/sync/semaphore"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/install/bundle"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// gpusOfNode is the number of stand-in GPUs of each of the two nodes.
const gpusOfNode = 4

// lanes is the number of scenarios that two processors can run in parallel with a real training
// without timeouts.
const lanes = 2

// training has what all scenarios share.
type training struct {
	clients *kube.Clients
	builds  buildclient.BuildV1Interface
	// steps is the image of the steps, built from the working tree; program is the program in it.
	steps, program string
	// mlenvProgram is mlenv, also built from the working tree.
	mlenvProgram string
	// repo is the URL of a repository with the examples, and with the scripts of testdata/repo
	// below e2e/; commit is its only commit.
	repo, commit string
}

// scenario is one use of training, in a namespace of its own.
type scenario struct {
	name string
	// gpus is the maximum number of a node's GPUs that the scenario holds.
	gpus int64
	tell func(trainer)
}

// setVariable chooses the scenarios: nightlySet adds nightlyScenarios to the others.
const (
	setVariable = "E2E_SET"
	nightlySet  = "nightly"
)

// nightlyScenarios are slow, and test what changes rarely.
var nightlyScenarios = []scenario{
	{"built-in-full", 2, builtInFull},
}

// testTraining runs the pipelines, and single Tasks, as users do, and checks what each run leaves
// behind.
func testTraining(t *testing.T, times *durations) {
	began := time.Now()
	shared := newTraining(t)
	// These scenarios need much CPU time, so they run one at a time.
	heavy := []scenario{
		{"built-by-runs", 2, builtByRuns},
		{"deepspeed-zero2", 2, deepspeedShared},
		{"deepspeed-node-storage", 2, deepspeedNodeStorage},
		{"torchrun-script", 2, torchrunScript},
	}
	if os.Getenv(setVariable) == nightlySet {
		heavy = slices.Concat(nightlyScenarios, heavy)
	}
	earnest := queue(heavy...)
	// The longest scenarios come first, so that no lane ends late.
	others := queue(
		scenario{"numbered-lines", 2, stepPodDeleted},
		scenario{"nightly", 1, nightly},
		scenario{"busy", 1, busyEnvironment},
		scenario{"build-failures", 0, buildFailures},
		scenario{"built-once", 0, builtOnce},
		scenario{"build-interrupted", 1, buildInterrupted},
		scenario{"two-environments", 2, twoEnvironments},
		scenario{"build-disk", 0, buildDisk},
		scenario{"build-push", 0, buildPush},
		scenario{"tasks-alone", 1, tasksAlone},
		scenario{"steps-by-hand", 1, stepsByHand},
		scenario{"dev-loop", 1, devLoop},
		scenario{"github-action", 1, githubAction},
		scenario{"webhook", 1, webhook},
		scenario{"rdma-by-admin", 1, rdmaByAdmin},
		scenario{"rdma-not-allowed", 1, rdmaNotAllowed},
		scenario{"rdma-attachments", 1, rdmaAttachments},
		scenario{"rdma-memlock", 1, rdmaMemlock},
		scenario{"fabric-foreign-pods", 0, foreignPods},
		scenario{"rdma-capabilities", 1, rdmaCapabilities},
		scenario{"rdma-unreferenced", 1, rdmaUnreferenced},
		scenario{"rdma-training", 1, rdmaTraining},
		scenario{"timeout-too-short", 1, timeoutTooShort},
		scenario{"rank-fails", 2, rankFails},
		scenario{"out-of-memory", 1, outOfMemory},
		scenario{"secret", 1, envSecret},
		scenario{"wrong-commit", 1, wrongCommit},
		scenario{"script-missing", 1, scriptMissing},
		scenario{"image-missing", 1, imageMissing},
		scenario{"too-many", 0, tooMany},
		scenario{"quota", 1, quotaExceeded},
		scenario{"release-bundle", 0, releaseBundle},
		scenario{"cancelled", 1, runCancelled},
		scenario{"run-by-mlenv", 1, runByMlenv},
		scenario{"run-cancelled-by-ctrl-c", 1, runCancelledByCtrlC},
		scenario{"run-detached", 1, runDetached},
		scenario{"cancelled-without-teardown", 1, runCancelledOutright},
		scenario{"deleted", 1, runDeleted},
		scenario{"reaped", 1, reaped},
		scenario{"container-killed", 1, containerKilled},
		scenario{"gpus-held", gpusOfNode, gpusHeld},
		scenario{"install-uninstall-init", 0, installUninstallInit},
	)
	gpus := semaphore.NewWeighted(gpusOfNode)
	lane := func(scenarios <-chan scenario) func() {
		return func() {
			for s := range scenarios {
				if err := gpus.Acquire(t.Context(), s.gpus); err != nil {
					t.Error(err)
					return
				}
				t.Run(s.name, func(t *testing.T) {
					times.note(t)
					shared.tell(t, s.tell)
				})
				gpus.Release(s.gpus)
			}
		}
	}
	var all sync.WaitGroup
	all.Go(lane(earnest))
	for range lanes {
		all.Go(lane(others))
	}
	all.Wait()
	// These scenarios break a part of the whole cluster.
	for _, s := range []scenario{
		{"rdma-faults", 1, rdmaFaults},
		{"rdma-slow-node", 1, rdmaSlowNode},
		{"gpu-missing", 1, gpuMissing},
		{"api-server-away", 1, apiServerAway},
	} {
		t.Run(s.name, func(t *testing.T) {
			times.note(t)
			shared.tell(t, s.tell)
		})
	}
	// The requests of all scenarios.
	whole := wholeSuite(t)
	t.Run("rights", func(t *testing.T) { testRights(t, began, whole) })
}

func queue(scenarios ...scenario) <-chan scenario {
	waiting := make(chan scenario, len(scenarios))
	for _, s := range scenarios {
		waiting <- s
	}
	close(waiting)
	return waiting
}

// tell runs one scenario, which must leave nothing behind.
func (s training) tell(t *testing.T, story func(trainer)) {
	t.Helper()
	u := s.trainer(newUser(t))
	story(u)
	u.nothingLeft()
}

func newTraining(t *testing.T) training {
	t.Helper()
	clients, err := kube.Flags{Kubeconfig: kubeconfig}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	s := training{clients: clients}
	if s.builds, err = buildclient.NewForConfig(clients.Config); err != nil {
		t.Fatal(err)
	}
	s.steps, s.program = pushSteps(t)
	s.mlenvProgram = filepath.Join(t.TempDir(), "mlenv")
	if out, err := run(t, nil, "go", "build", "-C", repository(t), "-o", s.mlenvProgram, "./cmd/mlenv"); err != nil {
		t.Fatalf("building mlenv: %v\n%s", err, out)
	}
	s.repo, s.commit = serveRepository(t)
	return s
}

// pushSteps builds and pushes the image of the steps as mlenv bundle does.
func pushSteps(t *testing.T) (pushed, program string) {
	t.Helper()
	contents, image := stepsImage(t, repository(t))
	index, err := bundle.StepsIndex(contents.Source, contents.Base, []v1.Image{image})
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(registryHost + "/e2e/steps:1")
	if err != nil {
		t.Fatal(err)
	}
	if pushed, err = bundle.Push(t.Context(), reference, index); err != nil {
		t.Fatal(err)
	}
	return pushed, contents.Program
}

// stepsImage builds the steps' image for this machine from the sources in the folder.
func stepsImage(t *testing.T, sources string) (bundle.Contents, v1.Image) {
	t.Helper()
	source := bundle.Source{Dir: sources, Version: "e2e"}
	contents, err := source.Compile(t.Context(), t.TempDir(), bundle.Platforms()[0])
	if err != nil {
		t.Fatal(err)
	}
	if contents.Licences, err = source.Licences(t.Context(), contents.Program, contents.Agent); err != nil {
		t.Fatal(err)
	}
	if contents.Roots, err = bundle.HostRoots(); err != nil {
		t.Fatal(err)
	}
	if contents.Base, err = bundle.ResolveBase(t.Context(), registryHost+"/base/git:latest"); err != nil {
		t.Fatal(err)
	}
	image, err := bundle.StepsImage(contents)
	if err != nil {
		t.Fatal(err)
	}
	return contents, image
}

// serveRepository adds a repository to the cluster's git server.
func serveRepository(t *testing.T) (url, commit string) {
	t.Helper()
	work := t.TempDir()
	for from, to := range map[string]string{
		filepath.Join(repository(t), "examples"): work,
		filepath.Join("testdata", "repo"):        filepath.Join(work, "e2e"),
	} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	// A unique name, because another test may be running.
	served, err := os.MkdirTemp(filepath.Join(stateDir, "git", "repositories"), "e2e-training-*.git")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(served); err != nil {
			t.Error(err)
		}
	})
	git := func(args ...string) string {
		out, err := run(t, nil, "git", append([]string{"-C", work, "-c", "user.name=e2e", "-c", "user.email=e2e@localcluster.local"}, args...)...)
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(out)
	}
	git("init", "--quiet", "--initial-branch=main")
	git("add", "--all")
	git("commit", "--quiet", "--message=all")
	git("clone", "--quiet", "--bare", work, served)
	return "https://" + gitHost + "/" + filepath.Base(served), git("rev-parse", "HEAD")
}

// trainer is a user whose namespace has ml-dev-env installed.
type trainer struct {
	user
	training
}

// trainer installs ml-dev-env into the user's namespace.
func (s training) trainer(u user) trainer {
	u.Helper()
	made := trainer{u, s}
	made.installChanged()
	return made
}

// install runs mlenv install. A test can call it again, with more flags or with another cluster
// file.
func (u trainer) install(clusterFile string, flags ...string) {
	u.Helper()
	cmd := install.Command(mldevenv.Bundle, schedule.Carry)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{clusterFile, "--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "--steps-image=" + u.steps}, flags...))
	if err := cmd.ExecuteContext(u.Context()); err != nil {
		u.Fatalf("installing into %s: %v\n%s", u.namespace, err, out.String())
	}
}

// trainingImage is an image that the local cluster has from the start, so that not every scenario
// builds its own.
const trainingImage = registryHost + "/training:latest"

// installChanged installs a changed copy of clusters/local.yaml, in which the image is
// trainingImage.
func (u trainer) installChanged(oldNew ...string) {
	u.Helper()
	u.install(u.clusterFile(oldNew...))
}

func (u trainer) clusterFile(oldNew ...string) (path string) {
	u.Helper()
	content, err := os.ReadFile("../../clusters/local.yaml")
	if err != nil {
		u.Fatal(err)
	}
	named := buildsImage.ReplaceAllString(string(content), "image:\n  name: "+trainingImage+"\n")
	path = filepath.Join(u.TempDir(), "local.yaml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(oldNew...).Replace(named)), 0o644); err != nil {
		u.Fatal(err)
	}
	return path
}

// buildsImage is the image block of clusters/local.yaml.
var buildsImage = regexp.MustCompile(`(?m)^image:\n(  .*\n)+`)
