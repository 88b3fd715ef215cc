// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	routefake "github.com/openshift/client-go/route/clientset/versioned/fake"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

const clusterFile = `
cluster: {name: test, api: "api.test:6443", namespace: ns}
nodes: {gpu_nodes: [node-0, node-1, node-2, node-3]}
gpus: {per_node: 4, type: NVIDIA H100 80GB HBM3, default_nodes: 2}
storage: {class_rwx: nfs, class_rwo: block, workspace_size: 1Gi, datasets_size: 1Gi, mode: rwx}
network: {rdma: {enabled: false}}
resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1Gi, cpu: 1}}
`

// place is the part of a cluster on which provision relies: the fake API server; what the fake lacks (UIDs, their
// preconditions, the deletion of what a Lease owns); and a stand-in for the StatefulSet controller and the nodes. As soon
// as provision applies a StatefulSet its pods exist, with real agents in them that have the certificates of the
// environment's Secret.
type place struct {
	t      *testing.T
	kube   *fake.Clientset
	tekton *tektonfake.Clientset
	routes *routefake.Clientset
	// notReady keeps the pods from becoming ready. separate gives each node a volume of its own. wrong changes a node's
	// facts. nameless is called with the node after each answer; if it is set, a resolver that does not know the names
	// answers.
	notReady, separate bool
	// noRail makes the pods of a StatefulSet that requests RDMA devices wait with this message of the scheduler, for three
	// minutes so far.
	noRail string
	// admittedBy is the constraint that admits all pods, "" for none.
	admittedBy string
	// busy agents answer 503 to requests for facts.
	busy     bool
	wrong    func(*agent.Facts)
	nameless func(node int)
	// probe decides what happens to a new claim. If it is nil, the claim is bound.
	probe func(*corev1.PersistentVolumeClaim) *corev1.Event
	// said is called with each log message.
	said func(string)

	agents []*agenttest.Node
	made   int
	mu     sync.Mutex
	log    []string
}

func newPlace(t *testing.T, known ...runtime.Object) *place {
	t.Helper()
	agenttest.FakeSMI(t)
	p := &place{t: t, kube: fake.NewClientset(known...), routes: routefake.NewClientset(), tekton: tektonfake.NewSimpleClientset()}
	store := clienttesting.ObjectReaction(p.kube.Tracker())
	p.kube.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		p.made++
		action.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease).UID = types.UID(fmt.Sprint("lease-", p.made))
		return false, nil, nil
	})
	p.kube.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return p.deleted(action.(clienttesting.DeleteActionImpl))
	})
	p.kube.PrependReactor("patch", "statefulsets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := store(action)
		if err == nil {
			p.roll(obj.(*appsv1.StatefulSet))
		}
		return handled, obj, err
	})
	p.kube.PrependReactor("patch", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := store(action)
		if err == nil {
			claim := obj.(*corev1.PersistentVolumeClaim)
			if p.probe == nil {
				claim.Status.Phase = corev1.ClaimBound
			} else if event := p.probe(claim); event != nil {
				event.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: claim.Name}
				event.InvolvedObject = corev1.ObjectReference{Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID}
				p.must(p.kube.Tracker().Add(event))
			}
			p.must(p.kube.Tracker().Update(action.GetResource(), claim, claim.Namespace))
		}
		return handled, obj, err
	})
	return p
}

func (p *place) must(err error) {
	if err != nil {
		p.t.Error(err)
	}
}

// deleted checks the UID, which the fake does not do, and collects garbage.
func (p *place) deleted(action clienttesting.DeleteActionImpl) (bool, runtime.Object, error) {
	tracker, gvr := p.kube.Tracker(), action.GetResource()
	found, err := tracker.Get(gvr, action.Namespace, action.Name)
	if err != nil {
		return true, nil, err
	}
	live := found.(metav1.Object)
	if want := action.DeleteOptions.Preconditions; want != nil && want.UID != nil && *want.UID != live.GetUID() {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), action.Name, errors.New("another UID"))
	}
	p.must(tracker.Delete(gvr, action.Namespace, action.Name))
	p.collect("statefulsets", live.GetUID())
	if gvr.Resource == "statefulsets" || gvr.Resource == "leases" {
		p.collect("pods", "")
	}
	return true, nil, nil
}

// collect deletes the objects of the owner, and all pods.
func (p *place) collect(resource string, owner types.UID) {
	gvr, kind := appsv1.SchemeGroupVersion.WithResource("statefulsets"), appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	if resource == "pods" {
		gvr, kind = corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod")
	}
	list, err := p.kube.Tracker().List(gvr, kind, "ns")
	p.must(err)
	var left []metav1.Object
	switch list := list.(type) {
	case *appsv1.StatefulSetList:
		for i := range list.Items {
			left = append(left, &list.Items[i])
		}
	case *corev1.PodList:
		for i := range list.Items {
			left = append(left, &list.Items[i])
		}
	}
	for _, object := range left {
		owned := slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner })
		if owned || resource == "pods" {
			p.must(p.kube.Tracker().Delete(gvr, "ns", object.GetName()))
		}
	}
}

// roll creates the pods of a StatefulSet.
func (p *place) roll(set *appsv1.StatefulSet) {
	tracker := p.kube.Tracker()
	count := int(*set.Spec.Replicas)
	if !p.notReady && len(p.agents) != count {
		secret, err := tracker.Get(corev1.SchemeGroupVersion.WithResource("secrets"), "ns", "env-agent-server")
		p.must(err)
		client, err := tracker.Get(corev1.SchemeGroupVersion.WithResource("secrets"), "ns", "env-agent-client")
		p.must(err)
		server, steps := secret.(*corev1.Secret).Data, client.(*corev1.Secret).Data
		p.agents = agenttest.StartWith(p.t, count, agenttest.Options{Shared: !p.separate, Certificates: objects.Certificates{
			CA: server["ca.crt"], ServerCert: server["tls.crt"], ServerKey: server["tls.key"], ClientCert: steps["tls.crt"],
			ClientKey: steps["tls.key"],
		}})
		p.mountServices()
		for i, node := range p.agents {
			node.Wrap(func(next http.Handler) http.Handler { return p.answers(i, next) })
		}
	}
	set.UID = "statefulset"
	waits := p.notReady || p.noRail != "" && len(set.Spec.Template.Annotations) > 0
	for i := range count {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("env-%d", i), UID: types.UID(fmt.Sprint("pod-", i)),
				Labels: set.Spec.Template.Labels, CreationTimestamp: metav1.Now()},
			Spec: *set.Spec.Template.Spec.DeepCopy(),
			Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", LastTransitionTime: metav1.Now(),
				Message: "0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4 nodes are available: 4 No preemption victims found " +
					"for incoming pod.",
			}}},
		}
		if p.admittedBy != "" {
			pod.Annotations = map[string]string{objects.AdmittedByAnnotation: p.admittedBy}
		}
		if p.noRail != "" {
			pod.Status.Conditions[0].Message, pod.Status.Conditions[0].LastTransitionTime = p.noRail, metav1.NewTime(time.Now().Add(-3*time.Minute))
		}
		if !waits {
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: p.agents[i].Config.PodIP,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "train", ImageID: "registry.test/train@sha256:" + strings.Repeat("1", 64),
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			}
			set.Status.ReadyReplicas = int32(i + 1)
		}
		if err := tracker.Add(pod); err != nil && !apierrors.IsAlreadyExists(err) {
			p.t.Error(err)
		}
	}
	p.must(tracker.Update(appsv1.SchemeGroupVersion.WithResource("statefulsets"), set, "ns"))
}

// mountServices does the kubelet's work: it writes the Secret's content to the folder that the agents read.
func (p *place) mountServices() {
	secret, err := p.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), "ns", "env-services")
	p.must(err)
	for _, node := range p.agents {
		dir := filepath.Join(node.Config.Paths.Home, "services")
		p.must(os.MkdirAll(dir, 0o755))
		for key, value := range secret.(*corev1.Secret).Data {
			p.must(os.WriteFile(filepath.Join(dir, key), value, 0o600))
		}
	}
}

// answers returns a handler between an agent and the steps. It knows the cluster's names, which a test's resolver does not
// know.
func (p *place) answers(node int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/facts" && p.busy:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/facts" && p.wrong != nil:
			recorded := httptest.NewRecorder()
			next.ServeHTTP(recorded, r)
			var facts agent.Facts
			_ = json.Unmarshal(recorded.Body.Bytes(), &facts)
			p.wrong(&facts)
			_ = json.NewEncoder(w).Encode(facts)
		case r.URL.Path == "/v1/resolve" && p.nameless == nil:
			_ = json.NewEncoder(w).Encode(agent.Resolution{})
		case r.URL.Path == "/v1/resolve":
			next.ServeHTTP(w, r)
			p.nameless(node)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Handle makes place a log handler.
func (p *place) Handle(_ context.Context, record slog.Record) error {
	p.mu.Lock()
	p.log = append(p.log, record.Message)
	p.mu.Unlock()
	if p.said != nil {
		p.said(record.Message)
	}
	return nil
}

func (p *place) Enabled(context.Context, slog.Level) bool { return true }
func (p *place) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p *place) WithGroup(string) slog.Handler            { return p }

func (p *place) messages() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}

// timeUntilTheStepWaits is the start-timeout of tests in which the step waits in vain.
const timeUntilTheStepWaits = 2 * time.Second

// provisioner returns the step in run train-1, as changed by change.
func (p *place) provisioner(change ...func(*provisioner)) *provisioner {
	p.t.Helper()
	file, err := cluster.Load("test.yaml", []byte(clusterFile))
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(p)
	const timeForThePodsToStart = time.Minute
	o := Options{Mode: "auto", StartTimeout: timeForThePodsToStart, OnBusy: "fail", OnChange: "fail"}
	o.Run.Name, o.Run.UID = "train-1", "uid-1"
	step := &provisioner{
		options: o, log: log, now: time.Now, routes: p.routes.RouteV1(), hosts: map[string]string{},
		clients: &kube.Clients{Kube: p.kube, Tekton: p.tekton, Config: &rest.Config{Host: "https://api.test:6443"}, Namespace: "ns",
			InCluster: true},
		holder: lease.Holder{ID: "uid-1", Display: "train-1", Run: true},
		// No registry listens there, so the image's size stays unknown.
		request: objects.Request{Cluster: file, Name: "env", Namespace: "ns", GPUsPerNode: new(2), Mode: agent.TCP, Image: "127.0.0.1:1/train:1",
			StepsImage: "127.0.0.1:1/steps:1"},
	}
	for _, c := range change {
		c(step)
	}
	step.request = step.request.WithDefaults()
	return step
}

// withRun adds the PipelineRun, which started now, with its timeout.
func (p *place) withRun(timeouts *v1.TimeoutFields) *place {
	p.t.Helper()
	run := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "train-1", UID: "uid-1"},
		Spec: v1.PipelineRunSpec{Timeouts: timeouts}}
	run.Status.StartTime = &metav1.Time{Time: time.Now()}
	if err := p.tekton.Tracker().Add(run); err != nil {
		p.t.Fatal(err)
	}
	return p
}

// left returns the names of the objects in the namespace.
func (p *place) left() (names []string) {
	p.t.Helper()
	ctx := context.Background()
	sets, err1 := p.kube.AppsV1().StatefulSets("ns").List(ctx, metav1.ListOptions{})
	pods, err2 := p.kube.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
	claims, err3 := p.kube.CoreV1().PersistentVolumeClaims("ns").List(ctx, metav1.ListOptions{})
	leases, err4 := p.kube.CoordinationV1().Leases("ns").List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		p.t.Fatal(err)
	}
	for _, o := range leases.Items {
		names = append(names, "lease "+o.Name+" "+string(o.UID))
	}
	for _, o := range sets.Items {
		names = append(names, "statefulset "+o.Name)
	}
	for _, o := range pods.Items {
		names = append(names, "pod "+o.Name)
	}
	for _, o := range claims.Items {
		names = append(names, "claim "+o.Name)
	}
	slices.Sort(names)
	return names
}
