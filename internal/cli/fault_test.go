// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

const faultyCluster = `
cluster: {name: test, api: "api.test:6443", namespace: ns}
nodes: {gpu_nodes: [node-0, node-1]}
gpus: {per_node: 4, type: NVIDIA H100 80GB HBM3, default_nodes: 1}
image: {name: "registry.test/train@sha256:1111111111111111111111111111111111111111111111111111111111111111"}
storage: {class_rwx: nfs, class_rwo: block, workspace_size: 1Gi, datasets_size: 1Gi, mode: rwx}
network: {rdma: {enabled: false}}
resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1Gi, cpu: 1}}
`

func TestMain(m *testing.M) { agenttest.Main(m) }

// me is the user that apitest knows.
const me = "h-kim"

func about(name, environment string) metav1.ObjectMeta {
	of := metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)}
	if environment != "" {
		of.Labels = objects.Labels(environment)
	}
	return of
}

// kept is an environment that a user holds, with its claims.
func kept(name, holder string) []runtime.Object {
	held := &coordinationv1.Lease{ObjectMeta: about(name, name), Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder,
		RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(time.Hour / time.Second))}}
	held.Annotations = map[string]string{lease.HolderName: holder, lease.HolderKind: "User"}
	set := &appsv1.StatefulSet{ObjectMeta: about(name, name), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}
	set.UID, set.OwnerReferences = types.UID("set-of-"+name), []metav1.OwnerReference{objects.LeaseReference(name, held.UID)}
	pod := &corev1.Pod{ObjectMeta: about(name+"-0", name)}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, UID: set.UID}}
	return append(claimsOf(name), held, set, pod)
}

func claimsOf(environment string) (claims []runtime.Object) {
	for _, use := range []string{"-workspace", "-datasets"} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: about(strings.TrimSuffix(environment, "-env")+use, environment)}
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		claim.Status.Phase = corev1.ClaimBound
		claims = append(claims, claim)
	}
	return claims
}

// inProgress is a run in an environment.
func inProgress(name, environment string) *v1.PipelineRun {
	r := &v1.PipelineRun{ObjectMeta: about(name, "")}
	r.Labels = map[string]string{"tekton.dev/pipeline": launch.Pipeline}
	r.Spec.PipelineRef = &v1.PipelineRef{Name: launch.Pipeline}
	r.Spec.Params = v1.Params{{Name: "name", Value: *v1.NewStructuredValues(environment)}}
	r.Status.StartTime = new(metav1.Now())
	return r
}

// typed is a command that a person types, and the namespace in which it runs.
type typed struct {
	command string
	// bare is true for a namespace in which nothing is installed.
	bare bool
	with []runtime.Object
	// rival is a run that another user starts at the same moment, nil for none.
	rival *v1.PipelineRun
	// most is how many faults each request has, 0 for all.
	most int
	// waits is true for a command that waits until its timeout while the API server is away, which takes too long here.
	waits bool
}

// place returns an API server with these objects, and stand-ins for the parts of a cluster that the commands see at once: accounts have
// pull secrets, claims are bound, and the pod of a StatefulSet runs, with a real agent in it.
func place(t *testing.T, with []runtime.Object, receipts ...string) *apitest.Server {
	t.Helper()
	server := apitest.Start(t, append(slices.Clip(with), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})...)
	for _, run := range receipts {
		r := receipt.Receipt{Run: run, RunUID: "uid-of-" + run, Namespace: "ns", Environment: "env", Verdict: receipt.Succeeded}
		if err := receipt.Write(t.Context(), server.Clients(nil).Kube, r); err != nil {
			t.Fatal(err)
		}
	}
	server.Admit = func(at string, object apitest.Object) {
		switch path.Base(path.Dir(at)) {
		case "serviceaccounts":
			object["imagePullSecrets"] = []any{apitest.Object{"name": path.Base(at) + "-dockercfg-1"}}
		case "persistentvolumeclaims":
			object["status"] = apitest.Object{"phase": string(corev1.ClaimBound)}
		}
	}
	var turn sync.Mutex
	made, over := map[string]bool{}, false
	t.Cleanup(func() {
		turn.Lock()
		defer turn.Unlock()
		over = true
	})
	server.Changed = func(at string, object apitest.Object) {
		if object == nil || path.Base(path.Dir(at)) != "statefulsets" {
			return
		}
		name, uid := path.Base(at), object["metadata"].(apitest.Object)["uid"].(string)
		turn.Lock()
		defer turn.Unlock()
		if over || made[uid] || server.UIDs()[at] != uid {
			return
		}
		made[uid] = true
		pod := &corev1.Pod{ObjectMeta: about(name+"-0", name)}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, UID: types.UID(uid)}}
		pod.Spec.NodeName, pod.Spec.ServiceAccountName = "node-0", "ml-dev-sa"
		pod.Spec.Containers = []corev1.Container{{Name: objects.TrainContainer, Image: "Train"}}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, agenttest.StartFor(t, server, name).Config.PodIP
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: objects.TrainContainer,
			ImageID: "registry.test/train@sha256:" + strings.Repeat("1", 64),
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		server.Add(pod)
		if server.UIDs()[at] != uid { // it was deleted meanwhile
			server.Delete("/api/v1/namespaces/ns/pods/" + pod.Name)
		}
	}
	return server
}

// Whichever request of a command to the API server fails, and however, the command succeeds, or it ends with a reason and the command
// to type next. Once that one, or the same one again, was typed, the namespace has the same objects as without the fault: nothing that
// should stay was deleted, and each run and environment was named to the user.
func TestEveryRequestMayFail(t *testing.T) {
	logged := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(logged) })
	agenttest.FakeSMI(t)
	t.Chdir(t.TempDir()) // whose path may contain spaces
	const file = "test.yaml"
	if err := os.WriteFile(file, []byte(faultyCluster), 0o600); err != nil {
		t.Fatal(err)
	}
	install := "install " + file + " --steps-image=registry.test/steps@sha256:" + strings.Repeat("2", 64)
	installed := place(t, nil)
	if said, code := mlenv(installed.Kubeconfig(nil), install); code != command.Done {
		t.Fatal(said)
	}
	fresh := map[string]apitest.Object{}
	for _, at := range installed.Paths() {
		fresh[at] = installed.Get(at)
	}
	others := slices.Concat(kept("ml-dev-env", "another"), kept("mine", me), claimsOf("old"))
	running := slices.Concat(others, []runtime.Object{inProgress("train-1", "ml-dev-env")})
	for name, of := range map[string]typed{
		"run":           {command: "run https://example.com/r.git train.py --detach", with: claimsOf("ml-dev-env")},
		"run by a name": {command: "run https://example.com/r.git train.py --detach --run-name=named", with: others, most: 3},
		"run of two": {command: "run https://example.com/r.git train.py --detach --run-name=named", with: claimsOf("ml-dev-env"),
			rival: inProgress("rival", "ml-dev-env"), waits: true},
		"cancel":         {command: "cancel", with: running},
		"cancel at once": {command: "cancel train-1 --now", with: append(running, inProgress("train-2", "mine")), most: 3},
		"prune":          {command: "prune --yes", with: running, most: 3},
		"prune two":      {command: "prune gone-1 gone-2 --yes", with: running},
		"claims delete":  {command: "claims delete old-workspace old-datasets --yes", with: running},
		"up":             {command: "up new --gpus-per-node=2", with: others, most: 1, waits: true},
		"down":           {command: "down mine --timeout=2s", with: others},
		"install":        {command: install, bare: true, with: others, most: 1},
		"uninstall":      {command: "uninstall --end-runs --receipts", with: running, most: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			without := true // any fault
			step := func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
				server := place(t, of.with, "gone-1", "gone-2", "gone-3")
				for at, object := range fresh {
					if !of.bare {
						server.Put(at, object)
					}
				}
				if of.rival != nil {
					server.Handle = func(_ http.ResponseWriter, r *http.Request) bool {
						if r.Method == http.MethodPost && path.Base(r.URL.Path) == "pipelineruns" {
							server.Add(of.rival)
						}
						return false
					}
				}
				before := server.UIDs()
				said, code := mlenv(server.Kubeconfig(wrap), of.command)
				unnamed(t, server, before, said)
				if without {
					if without = false; code != command.Done {
						t.Fatalf("exit code %d without a fault:\n%s", code, said)
					}
				}
				if code != command.Done {
					t.Logf("exit code %d: %s", code, said)
					found := explained.FindStringSubmatch(said)
					if found == nil {
						t.Fatalf("exit code %d: want a reason and a next step:\n%s", code, said)
					}
					// The next step may be the same command for what is left, or a look at the run that may exist.
					again, next := of.command, found[1]
					if strings.HasPrefix(next, "prune ") || strings.HasPrefix(next, "claims delete ") {
						again = next + " --yes"
					}
					run, _, looks := strings.Cut(strings.TrimPrefix(next, "status "), " -n ns")
					if !looks || server.UIDs()["/apis/tekton.dev/v1/namespaces/ns/pipelineruns/"+run] == "" {
						mlenv(server.Kubeconfig(nil), again)
					}
				}
				return left(server, before)
			}
			more := []apitest.Fault{apitest.Strange, apitest.Odd}
			if !of.waits {
				more = append(more, apitest.Ended)
			}
			apitest.SomeFaults(t, cmp.Or(of.most, len(apitest.Faults())+len(more)), step, more...)
		})
	}
}

// explained matches the message of an error with its reason and the next step. Its group is the next step's command of mlenv, if any.
var explained = regexp.MustCompile(`(?s)mlenv [a-z ]+ failed: [A-Z]\w+: .*\n  next: (?:mlenv ([^\n#]*))?`)

func mlenv(kubeconfig, line string) (said string, code int) {
	var out bytes.Buffer
	code = Main(append(strings.Fields(line), "--kubeconfig="+kubeconfig, "--namespace=ns"), &out, &out)
	return out.String(), code
}

// unnamed fails the test if there is a run or an environment that the user was not told of.
func unnamed(t *testing.T, server *apitest.Server, before map[string]string, said string) {
	t.Helper()
	for at, uid := range server.UIDs() {
		kind, name := path.Base(path.Dir(at)), path.Base(at)
		if (kind == "pipelineruns" || kind == "leases") && name != "rival" && before[at] != uid && !strings.Contains(said, name) {
			t.Errorf("%s exists: want its name in:\n%s", at, said)
		}
	}
}

// left lists the objects: whether they are those from before, and what a run was told. A new run may lack its receipt, which its first
// step begins then.
func left(server *apitest.Server, before map[string]string) (text string) {
	now := server.UIDs()
	for _, at := range slices.Sorted(maps.Keys(now)) {
		is := "as before"
		if now[at] != before[at] {
			is = "new"
		}
		if strings.Contains(at, "/pipelineruns/") {
			spec := server.Get(at)["spec"].(apitest.Object)
			is += fmt.Sprint(" ", spec["status"])
		}
		if is == "new" && strings.HasSuffix(at, "-receipt") {
			continue
		}
		text += "\n" + random.ReplaceAllString(at, "$1") + " " + is
	}
	return text
}

// random matches the part of a run's name that no two runs share.
var random = regexp.MustCompile(`(/train-multi-node-)\w+`)
