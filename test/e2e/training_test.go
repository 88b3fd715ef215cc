// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	buildclient "github.com/openshift/client-go/build/clientset/versioned/typed/build/v1"
	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/schedule"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/setup"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// gpusOfNode is the number of stand-in GPUs of each of the two nodes.
const gpusOfNode = 4

// lanes is the number of scenarios that run in parallel with a real training. Most of their time they wait for pods.
const lanes = 4

// training has what all scenarios share.
type training struct {
	clients *kube.Clients
	builds  buildclient.BuildV1Interface
	// steps is the image of the steps, built from the working tree.
	steps string
	// program is the steps' program, and mlenvProgram mlenv, also built from the working tree.
	program, mlenvProgram string
	// repo is the URL of a repository with the examples, and with the scripts of testdata/repo
	// below e2e/; commit is its only commit.
	repo, commit string
}

// scenario is one use of training, in a namespace of its own.
type scenario struct {
	name string
	// gpus is the maximum number of a node's GPUs that the scenario holds.
	gpus int64
	run  func(trainer)
}

// setVariable chooses the scenarios; without it those run that are not nightly. firstHalf and secondHalf divide these. firstNightly and
// secondNightly divide the nightly scenarios that test no fault. The other sets contain the scenarios of docs/project/faults.md:
// sharedFaults those that run in parallel with others, nodeFaults those that break a Kubernetes node, and serviceFaults
// those that break a service. The Makefile has a target for each set.
const (
	setVariable   = "E2E_SET"
	firstHalf     = "e2e-half-1"
	secondHalf    = "e2e-half-2"
	firstNightly  = "e2e-nightly-1"
	secondNightly = "e2e-nightly-2"
	sharedFaults  = "faults-shared"
	nodeFaults    = "faults-nodes"
	serviceFaults = "faults-services"
	chaosSet      = "chaos"
)

// seedVariable is the seed of set chaos.
const seedVariable = "SEED"

// chosen returns the scenarios of a kind that run.
func chosen(t *testing.T, always, nightly []scenario, alone bool) []scenario {
	t.Helper()
	var its []scenario
	for i, s := range slices.Concat(always, nightly) {
		usual, ofNode, isChaos, runs := i < len(always), strings.HasPrefix(s.name, "node-"), strings.HasPrefix(s.name, "chaos"), false
		switch set := os.Getenv(setVariable); set {
		case "":
			runs = usual
		case firstHalf:
			runs = usual && i%2 == 0
		case secondHalf:
			runs = usual && i%2 == 1
		case firstNightly:
			runs = !usual && !isFault(s.name) && !isChaos && i%2 == 0
		case secondNightly:
			runs = !usual && !isFault(s.name) && !isChaos && i%2 == 1
		case sharedFaults:
			runs = isFault(s.name) && !alone
		case nodeFaults:
			runs = isFault(s.name) && alone && ofNode
		case serviceFaults:
			runs = isFault(s.name) && alone && !ofNode
		case chaosSet:
			runs = isChaos
		default:
			t.Fatalf("%s=%s: no such set", setVariable, set)
		}
		if runs {
			its = append(its, s)
		}
	}
	return its
}

// Nightly scenarios are slow, variants of scenarios that always run, or faults that docs/project/faults.md lists.
var (
	nightlyHeavy = []scenario{
		{"deepspeed-zero2", 2, deepspeedShared},
		{"built-by-runs", 2, builtByRuns},
		{"tutorials", 2, tutorials},
		{"built-in-full", 2, builtInFull},
		{"gpu-flavours", 0, gpuFlavours},
		{"package-missing", 0, packageMissing},
		{"deepspeed-node-storage", 2, deepspeedNodeStorage},
		{"unchanged-programs", 1, unchangedPrograms},
		{"readme-command", 2, readmeCommand},
	}
	nightlyLight = []scenario{
		{"pull-secrets-late", 1, pullSecretsLate},
		{"rdma-by-admin", 1, rdmaByAdmin},
		{"rdma-attachments", 1, rdmaAttachments},
		{"privileged-gpus", 1, privilegedGPUs},
		{"claims-that-exist", 1, claimsThatExist},
		{"plain-kubernetes", 1, plainKubernetes},
		{"busy", 1, busyEnvironment},
		{"beside-a-colleague", 2, besideAColleague},
		{"build-failures", 0, buildFailures},
		{"two-environments", 2, twoEnvironments},
		{"tasks-alone", 1, tasksAlone},
		{"steps-by-hand", 1, stepsByHand},
		{"from-scripts", 1, fromScripts},
		{"webhook", 1, webhook},
		{"wrong-commit", 1, wrongCommit},
		{"script-missing", 1, scriptMissing},
		{"too-many", 0, tooMany},
		{"idle-released", 2, idleReleased},
		{"slow-device", 1, slowDevice},
		{"rdma-slow-node", 1, rdmaSlowNode},
		{"gpu-missing", gpusOfNode, gpuMissing},
		{"arguments", 1, argumentsArrive},
		{"built-once", 0, builtOnce},
		{"build-blocked", 0, buildBlocked},
		{"build-disk", 0, buildDisk},
		{"build-push", 0, buildPush},
		{"rdma-not-allowed", 1, rdmaNotAllowed},
		{"rdma-memlock", 1, rdmaMemlock},
		{"rdma-capabilities", 1, rdmaCapabilities},
		{"rdma-unreferenced", 1, rdmaUnreferenced},
		{"run-detached", 1, runDetached},
		{"run-requirements-fail", 1, requirementsFail},
		{"cancelled-without-teardown", 1, runCancelledOutright},
		{"evicted", 1, evicted},
		{"hangs", 1, hangs},
		{"resumed", 1, resumed},
		{"restarted-by-a-rule", 1, restartedByARule},
		{"saved-when-cancelled", 1, savedWhenCancelled},
		{"saved-when-drained", 1, savedWhenDrained},
		{"saved-at-timeout", 1, savedAtTimeout},
		{"ended-by-rules", 1, endedByRules},
		{"wild-output", 1, wildOutput},
		{"lease-stolen", 1, leaseStolen},
		{"same-name", 1, sameName},
		{"rendezvous-late", 1, lateForRendezvous},
		{"workspace-full", 1, workspaceFull},
		{"out-of-memory-group", 1, groupOutOfMemory},
		{"pull-slow", 1, slowPull},
		{"private-steps", 1, privateSteps},
		{"metrics", 1, metricsForPrometheus},
	}
	nightlyAlone = []scenario{
		{"builds-disabled", 0, buildsDisabled},
		{"node-lost", 1, nodeLost},
		{"node-replaced", 1, nodeReplaced},
		{"node-lost-without-tekton", 1, nodeLostWithoutTekton},
		{"node-stopped", 1, nodeStopped},
		{"node-cut-minute", 1, nodeCutMinute},
		{"api-server-away-in-each-task", 1, apiServerAwayInEachTask},
		{"tekton-restarted", 1, tektonRestarted},
		{"tekton-two-controllers", 1, twoControllers},
		{"etcd-slow", 1, etcdSlow},
		{"registry-away", 1, registryAway},
		{"git-away", 1, gitAway},
		{"git-slow", 1, gitSlow},
		{"dns-away", 1, dnsAway},
		{"log-full", 1, logFull},
		{"kueue", 1, admittedByKueue},
		{"chaos", 1, chaos},
	}
)

// testTraining runs the pipelines, and single Tasks, as users do, and checks what each run leaves
// behind. gpus has the GPUs of a node that nothing else uses.
func testTraining(t *testing.T, times *durations, gpus *semaphore.Weighted) {
	began := time.Now()
	shared := newTraining(t)
	// While a scenario breaks NICs, no other scenario uses NICs.
	var nics sync.RWMutex
	breaksNICs := []string{"rdma-faults", "rdma-slow-node"}
	// These scenarios need much CPU time, so they run one at a time.
	heavy := []scenario{
		{"torchrun-script", 2, torchrunScript},
		{"rdma-faults", 1, rdmaFaults},
	}
	heavyQueue := queue(chosen(t, heavy, nightlyHeavy, false)...)
	// The longest scenarios come first, so that no lane ends late.
	light := []scenario{
		{"local", 0, localRuns},
		{"github-action", 1, githubAction},
		{"rdma-training", 1, rdmaTraining},
		{"steps-too-early", 1, stepsTooEarly},
		{"numbered-lines", 2, stepPodDeleted},
		{"nightly", 1, nightly},
		{"build-interrupted", 1, buildInterrupted},
		{"dev-loop", 1, devLoop},
		{"timeout-too-short", 1, timeoutTooShort},
		{"three-commands", 1, threeCommands},
		{"rank-fails", 2, rankFails},
		{"out-of-memory", 1, outOfMemory},
		{"secret", 1, envSecret},
		{"ordinary-script", 1, ordinaryScript},
		{"mistakes-at-once", 1, mistakesAtOnce},
		{"image-missing", 1, imageMissing},
		{"quota", 1, quotaExceeded},
		{"release-bundle", 0, releaseBundle},
		{"cancelled", 1, runCancelled},
		{"run-by-mlenv", 1, runByMlenv},
		{"run-cancelled-by-ctrl-c", 1, runCancelledByCtrlC},
		{"deleted", 1, runDeleted},
		{"reaped", 1, reaped},
		{"node-excluded", 1, nodeExcluded},
		{"api-faults", 1, injected},
		{"container-killed", 1, containerKilled},
		{"restarted", 1, restarted},
		{"install-uninstall-init", 0, installUninstallInit},
		{"gpus-held", gpusOfNode, gpusHeld},
	}
	lightQueue := queue(chosen(t, light, nightlyLight, false)...)
	lane := func(scenarios <-chan scenario) func() {
		return func() {
			for s := range scenarios {
				var ofNICs sync.Locker = &sync.Mutex{} // scenarios without RDMA take no shared lock
				switch {
				case slices.Contains(breaksNICs, s.name):
					ofNICs = &nics
				case strings.HasPrefix(s.name, "rdma-"):
					ofNICs = nics.RLocker()
				}
				ofNICs.Lock()
				if err := gpus.Acquire(t.Context(), s.gpus); err != nil {
					t.Error(err)
					return
				}
				t.Run(s.name, func(t *testing.T) {
					times.note(t)
					shared.run(t, s.run)
				})
				gpus.Release(s.gpus)
				ofNICs.Unlock()
			}
		}
	}
	var all sync.WaitGroup
	all.Go(lane(heavyQueue))
	for range lanes {
		all.Go(lane(lightQueue))
	}
	all.Wait()
	// These scenarios break a part of the whole cluster.
	alone := []scenario{
		{"api-server-away", 1, apiServerAway},
		{"node-cut-short", 1, nodeCutShort},
	}
	for _, s := range chosen(t, alone, nightlyAlone, true) {
		t.Run(s.name, func(t *testing.T) {
			times.note(t)
			shared.run(t, s.run)
		})
	}
	if slices.Contains([]string{"", firstHalf, firstNightly}, os.Getenv(setVariable)) {
		t.Run("shipped-files", func(t *testing.T) { shared.testShippedFiles(t, times) })
	}
	// testRights checks the requests of all scenarios.
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

// run runs one scenario, which must leave nothing behind.
func (s training) run(t *testing.T, run func(trainer)) {
	t.Helper()
	u := s.trainer(newUser(t))
	run(u)
	u.nothingLeft()
}

// environment returns the default environment in the scenario's namespace.
func (u trainer) environment() env.Environment {
	clients := *u.clients
	clients.Namespace = u.namespace
	return env.Of(&clients, objects.DefaultName)
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
	s.steps = pushSteps(t)
	programs := t.TempDir()
	s.program, s.mlenvProgram = filepath.Join(programs, "steps"), filepath.Join(programs, "mlenv")
	if out, err := run(t, nil, "go", "build", "-C", repository(t), "-o", programs, "./cmd/mlenv", "./cmd/steps"); err != nil {
		t.Fatalf("building mlenv and the steps: %v\n%s", err, out)
	}
	s.repo, s.commit = serveRepository(t, map[string]string{".": filepath.Join(repository(t), "docs/examples"),
		"e2e": filepath.Join("testdata", "repo")})
	return s
}

// pushSteps builds and pushes the image of the steps.
func pushSteps(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(repository(t), "cmd/steps/release/steps-image"), registryHost+"/e2e/steps")
	cmd.Env = append(os.Environ(), "BASE="+registryHost+"/base/git:latest", "PLATFORMS=linux/amd64")
	var problems strings.Builder
	cmd.Stderr = &problems
	pushed, err := cmd.Output()
	if err != nil {
		t.Fatalf("cmd/steps/release/steps-image: %v\n%s", err, problems.String())
	}
	return strings.TrimSpace(string(pushed))
}

// takeSteps copies the steps' image into the namespace. To pull it from there a pod needs its account's Secret, which comes some time after
// the account.
func (u *trainer) takeSteps() {
	u.Helper()
	_, digest, _ := strings.Cut(u.steps, "@")
	repository := registryHost + "/" + u.namespace + "/steps"
	if err := crane.Copy(u.steps, repository+":1", crane.WithContext(u.Context())); err != nil {
		u.Fatal(err)
	}
	u.steps = repository + "@" + digest
}

// serveRepository adds a repository with copies of folders, by their names in it, to the cluster's git server.
func serveRepository(t *testing.T, folders map[string]string) (url, commit string) {
	t.Helper()
	work := t.TempDir()
	for to, from := range folders {
		if err := os.CopyFS(filepath.Join(work, to), os.DirFS(from)); err != nil {
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
	// workstation is where its runs are, if not on the cluster.
	workstation *workstation
}

// trainer installs ml-dev-env into the user's namespace.
func (s training) trainer(u user) trainer {
	u.Helper()
	made := trainer{user: u, training: s}
	made.takeSteps()
	made.installChanged()
	return made
}

// install runs mlenv install. A test can call it again, with more flags or with another cluster
// file.
func (u trainer) install(clusterFile string, flags ...string) {
	u.Helper()
	cmd := setup.InstallCommand(mldevenv.Bundle, schedule.ObjectsWithImage)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{clusterFile, "--kubeconfig=" + kubeconfig, "--namespace=" + u.namespace, "--steps-image=" + u.steps},
		flags...))
	if err := cmd.ExecuteContext(u.Context()); err != nil {
		u.Fatalf("installing into %s: %v\n%s", u.namespace, err, out.String())
	}
	u.suspendReaper(true)
}

// suspendReaper stops or resumes the CronJob that releases abandoned environments. Its pod in every namespace in every
// minute would be a fifth of all pods.
func (u trainer) suspendReaper(suspend bool) {
	u.Helper()
	change := fmt.Sprintf(`{"spec":{"suspend":%t}}`, suspend)
	if _, err := u.clients.Kube.BatchV1().CronJobs(u.namespace).Patch(u.Context(), "mlenv-reaper", types.MergePatchType, []byte(change),
		metav1.PatchOptions{}); err != nil {
		u.Fatal(err)
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
	// Some tests create environments without mlenv install, which creates the ConfigMap of trusted_ca.
	return u.localFile(append([]string{buildsImage.FindString(string(content)), "image:\n" + namedImage, "  trusted_ca: mlenv-trusted-ca\n",
		""}, oldNew...)...)
}

// localFile writes clusters/local.yaml with one replacement after the other.
func (u trainer) localFile(oldNew ...string) (path string) {
	u.Helper()
	content, err := os.ReadFile("../../clusters/local.yaml")
	if err != nil {
		u.Fatal(err)
	}
	text := string(content)
	for pair := range slices.Chunk(oldNew, 2) {
		if !strings.Contains(text, pair[0]) {
			u.Fatalf("clusters/local.yaml does not contain %q", pair[0])
		}
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	path = filepath.Join(u.TempDir(), "local.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		u.Fatal(err)
	}
	return path
}

// namedImage is the content of the image block in cluster files of clusterFile.
const namedImage = "  name: " + trainingImage + "\n" + withPullSecret

// withPullSecret names the Secret that the local cluster creates in every namespace.
const withPullSecret = "  pull_secret: registry-pull\n"

// buildsImage is the image block of clusters/local.yaml.
var buildsImage = regexp.MustCompile(`(?m)^image:\n(  .*\n)+`)
