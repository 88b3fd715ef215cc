package train

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/run"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Whichever request to the API server fails once, and however, a training ends as it does without, and the run remembers that.
func TestEveryRequestMayFail(t *testing.T) {
	agents := agenttest.Start(t, 1)
	if err := os.WriteFile(filepath.Join(agents[0].Config.Paths.Workspace, "train.sh"), []byte("echo fails; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	count := 0
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		count++
		uid := fmt.Sprint("uid-", count) // each is a job of its own
		server := apitest.Start(t, environmentOf(agents[0], uid)...)
		clients := server.Clients(wrap)
		clients.InCluster = true // pods are reached by their addresses
		_, err := Run(t.Context(), Deps{Clients: clients, Log: slog.New(slog.DiscardHandler)}, Options{
			Run: run.Flags{Name: "run", UID: uid, Task: "train"}, Name: "env", Script: filepath.Join(agents[0].Config.Paths.Workspace, "train.sh"),
			Launcher: agent.Command, RanksPerNode: 1, Timeout: time.Hour, ProgressEvery: time.Hour, DebugRank: -1,
		})
		reading := server.Clients(nil)
		m, notRead := receipt.Recall(t.Context(), reading.Kube, "ns", "run")
		part := m.PartOf("train")
		if part == nil {
			return fmt.Sprint(fail.ReasonOf(err), " and no part: ", notRead)
		}
		held, notFound := reading.Kube.CoordinationV1().Leases("ns").Get(t.Context(), "env", metav1.GetOptions{})
		failure := lease.FailureOf(held)
		return fmt.Sprint(fail.ReasonOf(err), " ", notRead, " ", part.Status, part.Reason, len(part.Record.Claims), part.Cause != nil, " ", notFound, failure != nil)
	})
}

// environmentOf returns the objects of an environment of one node that a run holds.
func environmentOf(node *agenttest.Node, uid string) []runtime.Object {
	about := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name), Labels: objects.Labels("env")}
	}
	names, made := objects.NamesOf("env"), node.Certificates()
	renewed, seconds := metav1.NewMicroTime(time.Now()), int32(600)
	held := &coordinationv1.Lease{ObjectMeta: about(names.Lease), Spec: coordinationv1.LeaseSpec{HolderIdentity: &uid, RenewTime: &renewed, LeaseDurationSeconds: &seconds}}
	held.Annotations = map[string]string{lease.HolderName: "run", lease.HolderKind: "PipelineRun"}
	pod := &corev1.Pod{ObjectMeta: about(names.PodName(0)), Spec: corev1.PodSpec{NodeName: "node-0"}}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, node.Config.PodIP
	return []runtime.Object{
		held, pod,
		&appsv1.StatefulSet{ObjectMeta: about(names.StatefulSet), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}},
		&corev1.Secret{ObjectMeta: about(names.ClientSecret), Data: map[string][]byte{"ca.crt": made.CA, "tls.crt": made.ClientCert, "tls.key": made.ClientKey}},
		&v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "run", UID: types.UID(uid)}},
	}
}
