// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
	"github.com/ml-dev-env/ml-dev-env/test/kueuetest"
)

// want is the expected result of a check.
type want struct {
	check     string
	status    Status
	seen, fix string
}

// TestChecks changes one property of a healthy cluster at a time.
func TestChecks(t *testing.T) {
	tests := []struct {
		name    string
		cluster func(*testing.T) (*world, cluster.File)
		change  func(*world, *Options)
		mode    agent.Mode
		want    []want
		// decided is the mode, and reason is the error's reason, "" for success.
		decided agent.Mode
		reason  fail.Reason
	}{
		{
			"no Tekton and no builds", barcelona, func(w *world, _ *Options) { w.groups = []string{securityGroup, attachmentGroup} }, agent.Auto,
			[]want{
				{"API groups", Warning, "there is no tekton.dev: steps can only be run by hand", "OpenShift Pipelines"},
				{"API groups", Blocked, "there is no build.openshift.io: no image can be built", "--image"},
			}, agent.RDMA, fail.BuildUnavailable,
		},
		{
			"no Multus", barcelona, func(w *world, _ *Options) { w.groups = []string{tektonGroup, buildGroup, imageGroup, securityGroup} },
			agent.Auto,
			[]want{{"API groups", BlockedRDMA, "there is no k8s.cni.cncf.io", "Multus"}}, agent.TCP, "",
		},
		{
			"the sample of the architecture document", func(t *testing.T) (*world, cluster.File) {
				w, _ := barcelona(t)
				content, err := os.ReadFile("../../cluster/testdata/architecture-barcelona.yaml")
				if err != nil {
					t.Fatal(err)
				}
				file, err := cluster.Load("barcelona.yaml", content)
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range file.Nodes.GPUNodes {
					w.objects = append(w.objects, node(name))
				}
				return w, file
			}, func(_ *world, o *Options) { o.Request.Image = "quay.io/me/training:1" }, agent.Auto,
			[]want{{choiceCheck, Warning, "network.rdma.interfaces of the cluster file is obsolete: only network attachments create these " +
				"interfaces", "mlenv validate"}}, agent.TCP, "",
		},
		{
			"Kubernetes alone", cairo, func(w *world, o *Options) {
				w.groups = []string{tektonGroup}
				o.Request.Image = "quay.io/me/training:1"
			}, agent.Auto,
			[]want{
				{"API groups", OK, "without security.openshift.io (pod security levels decide", ""},
				{"security", OK, "no security context constraint is named", ""},
				{"image", Unknown, "quay.io/me/training:1: its registry was not asked", ""},
			}, agent.RDMA, "",
		},
		{
			"routes without Routes", cairo, func(w *world, o *Options) {
				w.groups = []string{tektonGroup, buildGroup, imageGroup, securityGroup}
				o.Request.Routes, o.Request.Services = true, []string{"jupyter"}
			}, agent.Auto,
			[]want{{"API groups", Blocked, "there is no route.openshift.io", "leave --routes out"}}, agent.RDMA, fail.InvalidInput,
		},
		{
			"one right is missing", barcelona, func(w *world, _ *Options) { w.forbidden = []string{"patch statefulsets", "delete statefulsets"} },
			agent.Auto,
			[]want{{"permissions", Blocked, "system:serviceaccount:nccl-test:mlenv-pipeline may not patch, delete statefulsets.apps in namespace " +
				"nccl-test",
				"oc create role ml-dev-env-patch-delete-statefulsets -n nccl-test --verb=patch,delete --resource=statefulsets.apps\noc create " +
					"rolebinding ml-dev-env-patch-delete-statefulsets -n nccl-test --role=ml-dev-env-patch-delete-statefulsets " +
					"--serviceaccount=nccl-test:mlenv-pipeline"}},
			agent.RDMA, fail.PermissionDenied,
		},
		{
			"many are missing, of another account", barcelona, func(w *world, o *Options) {
				o.ServiceAccount = "pipeline"
				w.forbidden = []string{"create leases", "create services", "create secrets", "create configmaps"}
			}, agent.Auto,
			[]want{{"permissions", Blocked, "system:serviceaccount:nccl-test:pipeline may not create leases",
				"mlenv install clusters/barcelona.yaml -n nccl-test --service-account=pipeline"}},
			agent.RDMA, fail.PermissionDenied,
		},
		{
			"the right to look is missing", barcelona, func(w *world, _ *Options) { w.forbidden = []string{"create pods", "list limitranges"} },
			agent.Auto,
			[]want{
				{"permissions to look", Warning, "may not create pods; list limitranges", "--verb=create --resource=pods"},
				{"pod (rdma)", Unknown, "a dry run requires the right to create pods", "--resource=pods"},
				{"limit ranges", Unknown, "may not be read", "--resource=limitranges"},
			}, agent.RDMA, "",
		},
		{
			"who asks may not ask about others", cairo, func(w *world, o *Options) {
				o.ServiceAccount = "mlenv-pipeline"
				w.forbidden = []string{"create localsubjectaccessreviews"}
			}, agent.Auto,
			[]want{{"permissions", Unknown, "may not be read", "localsubjectaccessreviews"}}, agent.RDMA, "",
		},
		{
			"not tried, but not allowed what it is pinned to", cairo, func(w *world, _ *Options) {
				w.forbidden, w.uses = []string{"create pods"}, nil
			}, agent.Auto,
			[]want{{"pod (rdma)", BlockedRDMA, "pinned to security context constraint privileged, which service account ml-dev-sa may not use",
				"oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test"}},
			agent.TCP, "",
		},
		{
			"service account is yet to be made", cairo, func(w *world, _ *Options) { w.without("ml-dev-sa") }, agent.Auto,
			[]want{
				{"service account", OK, "ml-dev-sa does not exist yet; a dry run creates it", ""},
				{"pod (rdma)", Unknown, "the pod cannot be tried as ml-dev-sa, which does not exist yet, but may use security context constraint " +
					"privileged", "oc create serviceaccount ml-dev-sa -n nccl-test"},
				{"pod (tcp)", OK, "as service account default, because ml-dev-sa does not exist yet", ""},
			}, agent.RDMA, "",
		},
		{
			"and has no right yet", cairo, func(w *world, _ *Options) { w.without("ml-dev-sa"); w.uses = nil }, agent.Auto,
			[]want{{"pod (rdma)", BlockedRDMA, "a dry run is refused", "oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test"}},
			agent.TCP, "",
		},
		{
			"no such namespace", cairo, func(w *world, _ *Options) { w.without("ml-dev-sa"); w.noNamespace = true }, agent.Auto,
			[]want{{"namespace", Blocked, `namespaces "nccl-test" not found`, "oc new-project nccl-test"}}, agent.RDMA, fail.InvalidInput,
		},
		{
			"privileged, mode rdma", cairo, func(w *world, _ *Options) { w.uses = nil }, "rdma",
			[]want{{"pod (rdma)", BlockedRDMA, "the pod is pinned to privileged", "oc adm policy add-scc-to-user privileged -z ml-dev-sa -n " +
				"nccl-test"}},
			agent.RDMA, fail.RDMAUnavailable,
		},
		{
			"mode tcp asks nothing of RDMA", cairo, func(w *world, _ *Options) { w.uses = nil }, "tcp",
			[]want{{"pod (tcp)", OK, "a dry run is admitted", ""}}, agent.TCP, "",
		},
		{
			"admitted by the rights of who asks", cairo, func(w *world, _ *Options) { w.uses = map[string][]string{stepsUser: {"privileged"}} },
			agent.Auto,
			[]want{{"security", BlockedRDMA, "by the caller's rights: service account ml-dev-sa, which the nodes' pods have, may not use it",
				"oc adm policy add-scc-to-user privileged -z ml-dev-sa"}},
			agent.TCP, "",
		},
		{
			"named by the constraint itself", cairo, func(w *world, _ *Options) {
				w.uses = map[string][]string{stepsUser: {"privileged"}}
				w.others[constraints] = []*unstructured.Unstructured{{Object: map[string]any{
					"apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints", "metadata": map[string]any{"name": "privileged"},
					"users": []any{"system:serviceaccount:nccl-test:ml-dev-sa"},
				}}}
			}, agent.Auto,
			[]want{{"security", OK, "it names service account ml-dev-sa itself", ""}}, agent.RDMA, "",
		},
		{
			"IPC_LOCK is not allowed", barcelona, func(_ *world, o *Options) { o.Request.Cluster.Security.IPCLock = true }, agent.Auto,
			[]want{{"pod (rdma)", BlockedRDMA, "restricted-v2 refuses capabilities.add IPC_LOCK of container train: capability may not be added",
				"oc adm policy add-scc-to-user privileged -z ml-dev-sa -n nccl-test"}},
			agent.TCP, "",
		},
		{
			"shared devices", func(t *testing.T) (*world, cluster.File) {
				w, file := barcelona(t)
				rdma := &file.Network.RDMA
				rdma.Attachments, rdma.Resources = nil, cluster.ResourceCounts{"rdma/rdma_shared_device_eth": 1}
				w.others[attachment.Resource()] = nil
				for i, nic := range []string{"ens8f0np0", "ens9f0np0"} {
					w.attach(nic, "", fmt.Sprintf("192.168.%d.0/24", i))
					object := w.others[attachment.Resource()][i].Object
					config := object["spec"].(map[string]any)["config"].(string)
					object["spec"] = map[string]any{"config": strings.Replace(config, `"sriov"`, `"macvlan","master":"`+nic+`"`, 1)}
					unstructured.RemoveNestedField(object, "metadata", "annotations")
					rdma.Attachments = append(rdma.Attachments, "default/"+nic+"-network")
				}
				w.each(func(n *corev1.Node) {
					n.Status.Allocatable["rdma/rdma_shared_device_eth"], n.Status.Capacity["rdma/rdma_shared_device_eth"] =
						resource.MustParse("63"), resource.MustParse("63")
				})
				return w, file
			}, func(*world, *Options) {}, agent.Auto, []want{
				{"rdma", OK, "by shared devices: 2 attachments, 1 resource", ""},
				{"attachment default/ens8f0np0-network", OK, "macvlan of ens8f0np0, addresses 192.168.0.0/24", ""},
				{"node moc-r4pcc02u17-nairr", OK, "rdma/rdma_shared_device_eth 63, 63 free", ""},
			}, agent.RDMA, "",
		},
		{
			"attachments of the environment's own namespace that nobody has copied", barcelona, func(_ *world, o *Options) {
				o.Request.Cluster.Network.RDMA.Attachments = []string{"eno5np0-network"}
			}, agent.Auto, []want{{"attachment nccl-test/eno5np0-network", BlockedRDMA, "it does not exist",
				"mlenv admin clusters/barcelona.yaml -n nccl-test --attachments=copy prints copies"}}, agent.TCP, "",
		},
		{
			"no shared devices", barcelona, func(_ *world, o *Options) {
				o.Request.Cluster.Network.RDMA.Resources = cluster.ResourceCounts{"rdma/rdma_shared_device_eth": 1}
				o.Request.Cluster.Network.RDMA.Attachments = nil
			}, agent.Auto, []want{{"rails", BlockedRDMA, "0 nodes have the resources", "oc get nicclusterpolicy"}}, agent.TCP, "",
		},
		{
			"the constraint does not exist", barcelona, func(w *world, o *Options) {
				o.Request.Cluster.Security.SCC = "nccl-scc"
				w.refuse = func(pod *corev1.Pod) string {
					if pod.Annotations[objects.SCCAnnotation] == "" {
						return ""
					}
					return `failed to retrieve the required SCC "nccl-scc": securitycontextconstraints.security.openshift.io "nccl-scc" not found`
				}
			}, agent.Auto,
			[]want{{"pod (rdma)", BlockedRDMA, `failed to retrieve the required SCC "nccl-scc"`, ""}}, agent.TCP, "",
		},
		{
			"a webhook refuses every pod", barcelona, func(w *world, _ *Options) {
				w.refuse = func(*corev1.Pod) string {
					return `admission webhook "policy.example.com" denied the request: no GPUs on Sundays`
				}
			}, agent.Auto,
			[]want{{"pod (tcp)", Blocked, "admission webhook policy.example.com refuses it: no GPUs on Sundays", "webhookconfigurations"}},
			agent.TCP, fail.SecurityRefused,
		},
		{
			"quota is full now", barcelona, func(w *world, _ *Options) {
				w.objects = append(w.objects, quota("gpus", "requests.nvidia.com/gpu", "16", "12"))
				w.refuse = func(*corev1.Pod) string {
					return "exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=12, limited: " +
						"requests.nvidia.com/gpu=16"
				}
			}, agent.Auto,
			[]want{
				{"pod (rdma)", Warning, "quota gpus is exceeded: requests.nvidia.com/gpu: each asks 4, used 12 of 16", ""},
				{"quota", Warning, "gpus: requests.nvidia.com/gpu: the environment asks 8 more, used 12 of 16", "oc describe quota gpus -n nccl-test"},
			}, agent.RDMA, "",
		},
		{
			"quota is too small", barcelona, func(w *world, _ *Options) {
				w.objects = append(w.objects, quota("gpus", "requests.nvidia.com/gpu", "4", "0"), quota("claims", "requests.storage", "1Ti", "0"))
			}, agent.Auto,
			[]want{
				{"quota", Blocked, "gpus: requests.nvidia.com/gpu: the environment asks 8 more, used 0 of 4", "--nodes"},
				// Each of two nodes has claims of 100Gi and 500Gi.
				{"quota", Blocked, "claims: requests.storage: the environment asks 1200Gi more, used 0 of 1Ti", "storage in the cluster file"},
			}, agent.RDMA, fail.QuotaExceeded,
		},
		{
			"limit range", barcelona, func(w *world, _ *Options) {
				w.objects = append(w.objects, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: "nccl-test"},
					Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
						{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Gi")}},
					}}})
			}, "tcp",
			[]want{{"limit ranges", Blocked, "small: memory of container train is 256Gi, at most 64Gi",
				"oc describe limitrange small -n nccl-test"}}, agent.TCP, fail.QuotaExceeded,
		},
		{
			"attachments may not be read", barcelona, func(w *world, _ *Options) { w.forbidden = []string{"get network-attachment-definitions"} },
			agent.Auto,
			[]want{{"attachment default/eno5np0-network", Unknown, "it may not be read",
				"--resource=network-attachment-definitions.k8s.cni.cncf.io"}}, agent.RDMA, "",
		},
		{
			"a range is too small", barcelona, func(w *world, o *Options) {
				w.attach("eno5np0", "openshift.io/eno5np0rdma", "10.0.103.0/30")
				o.Request.Nodes = 4
			}, agent.Auto,
			[]want{{"attachment default/eno5np0-network", BlockedRDMA, "its range 10.0.103.0/30 has 2 addresses, and 4 nodes want one each",
				"larger range"}}, agent.TCP, "",
		},
		{
			"a resource without an attachment", barcelona, func(_ *world, o *Options) {
				o.Request.Cluster.Network.RDMA.Attachments = o.Request.Cluster.Network.RDMA.Attachments[:3]
			}, agent.Auto,
			[]want{{"attachments", Warning, "no attachment is of resource openshift.io/eno8np0rdma", "network.rdma.attachments"}}, agent.RDMA, "",
		},
		{
			"no attachment is referenced", barcelona, func(_ *world, o *Options) { o.Request.Cluster.Network.RDMA.Attachments = nil }, agent.Auto,
			[]want{{"attachments", Warning, "Bootstrap : no socket interface found", "mlenv admin clusters/barcelona.yaml -n "}}, agent.RDMA, "",
		},
		{
			"nodes may not be read", barcelona, func(w *world, _ *Options) { w.forbidden = []string{"list nodes"} }, agent.Auto,
			[]want{{"nodes", Unknown, "the nodes may not be read", "--resource=nodes"}, {"iommu", Unknown, "the nodes may not be read", ""}},
			agent.RDMA, "",
		},
		{
			"pods elsewhere may not be read", barcelona, func(w *world, _ *Options) { w.forbidden = []string{"list everywhere pods"} }, agent.Auto,
			[]want{
				{"node moc-r4pcc02u17-nairr", OK, "nvidia.com/gpu 4, free unknown", ""},
				{"free devices", Unknown, "the pods of other namespaces may not be read", "oc create clusterrole ml-dev-env-list-pods"},
			}, agent.RDMA, "",
		},
		{
			"GPUs are held now", cairo, func(w *world, _ *Options) { w.objects = append(w.objects, holder("big", "moc-r4pcc02u15", "4")) },
			agent.Auto,
			[]want{
				{"node moc-r4pcc02u15", Warning, "nvidia.com/gpu 4, 0 free (others/big holds 4)", ""},
				{"nodes", Warning, "2 can be used, want 2; of these 1 at this moment", "ask its holders"},
			}, agent.RDMA, "",
		},
		{
			"GPUs that the environment holds itself", cairo, func(w *world, _ *Options) {
				own := holder("ml-dev-env-0", "moc-r4pcc02u15", "4")
				own.Namespace, own.Labels = "nccl-test", objects.Labels("ml-dev-env")
				w.objects = append(w.objects, own)
			}, agent.Auto,
			[]want{{"nodes", OK, "2 can be used, want 2", ""}}, agent.RDMA, "",
		},
		{
			"too few GPUs at any time", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) {
					n.Status.Capacity[gpu], n.Status.Allocatable[gpu] = resource.MustParse("2"), resource.MustParse("2")
				})
			}, agent.Auto,
			[]want{{"nodes", Blocked, "0 can be used, want 2: moc-r4pcc02u15: ready; nvidia.com/gpu 2 (want 4)", "--gpus-per-node"}}, agent.RDMA,
			fail.GPUsUnavailable,
		},
		{
			"the device plugin of the GPUs restarts", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) { n.Status.Allocatable[gpu] = resource.MustParse("0") })
			}, agent.Auto,
			[]want{{"nodes", Warning, "of these 0 at this moment", ""}}, agent.RDMA, "",
		},
		{
			"a taint", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoExecute}}
				})
			}, agent.Auto,
			[]want{{"nodes", Blocked, "0 can be used, want 2", "add to nodes.tolerations in the cluster file"}}, agent.RDMA, fail.NodeTainted,
		},
		{
			"a node is being set up", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) {
					n.Spec.Taints = []corev1.Taint{{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}}
				})
			}, agent.Auto,
			[]want{{"node moc-r4pcc02u15", Warning, "marked agent-not-ready", ""}, {"nodes", Warning, "of these 0 at this moment", ""}},
			agent.RDMA, "",
		},
		{
			"a listed node is gone", cairo, func(w *world, _ *Options) { w.without("moc-r4pcc02u16") }, agent.Auto,
			[]want{{"node moc-r4pcc02u16", Warning, "the cluster has no such node; its nodes with GPUs: moc-r4pcc02u15", "correct nodes.gpu_nodes"},
				{"nodes", Blocked, "1 can be used, want 2", ""}},
			agent.RDMA, fail.NodesUnavailable,
		},
		{
			"an excluded node is not counted", barcelona, func(_ *world, o *Options) {
				o.Request.Nodes, o.Request.ExcludeNodes = 4, []string{"moc-r4pcc02u25-nairr"}
			}, agent.Auto,
			[]want{{"nodes", OK, "4 can be used, want 4, without moc-r4pcc02u25-nairr", ""}}, agent.RDMA, "",
		},
		{
			"an excluded node does not exist", cairo, func(_ *world, o *Options) {
				o.Request.Cluster.Nodes.GPUNodes, o.Request.ExcludeNodes = nil, []string{"moc-r4pcc02u17"}
			}, agent.Auto,
			[]want{{"node moc-r4pcc02u17", Blocked, "the cluster has no such node; its nodes with GPUs: moc-r4pcc02u15 and moc-r4pcc02u16",
				"correct exclude-nodes"}},
			agent.RDMA, fail.InvalidInput,
		},
		{
			"monitoring", barcelona, func(w *world, o *Options) {
				w.groups = append(w.groups, objects.PodMonitors().Group)
				o.Request.Cluster.Monitoring.PodMonitor = true
			}, agent.Auto,
			[]want{{"monitoring", OK, "may create PodMonitors", ""}}, agent.RDMA, "",
		},
		{
			"monitoring without the operator", barcelona, func(_ *world, o *Options) {
				o.Request.Cluster.Monitoring.PodMonitor = true
			}, agent.Auto,
			[]want{{"monitoring", Warning, "the cluster has no PodMonitors (API group monitoring.coreos.com)", "leave monitoring.pod_monitor out"}},
			agent.RDMA, "",
		},
		{
			"monitoring without the right", barcelona, func(w *world, o *Options) {
				w.groups = append(w.groups, objects.PodMonitors().Group)
				w.forbidden = []string{"create podmonitors"}
				o.Request.Cluster.Monitoring.PodMonitor = true
			}, agent.Auto,
			[]want{{"monitoring", Warning, "may not create podmonitors.monitoring.coreos.com", "podmonitors"}}, agent.RDMA, "",
		},
		{
			"a queue", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				o.Request.Queue = "team-a"
			}, agent.Auto,
			[]want{{"queue", OK, "LocalQueue team-a of ClusterQueue gpus: 1 workload admitted, 2 waiting", ""}}, agent.RDMA, "",
		},
		{
			"a priority in the queue", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				o.Request.Queue, o.Request.QueuePriority = "team-a", "urgent"
			}, agent.Auto,
			[]want{{"queue", OK, "WorkloadPriorityClass urgent: priority 1000", ""}}, agent.RDMA, "",
		},
		{
			"a priority that may not be read", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				w.forbidden = []string{"get workloadpriorityclasses"}
				o.Request.Queue, o.Request.QueuePriority = "team-a", "urgent"
			}, agent.Auto,
			[]want{{"queue", Unknown, "WorkloadPriorityClass urgent", ""}}, agent.RDMA, "",
		},
		{
			"a priority that the cluster does not have", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				o.Request.Queue, o.Request.QueuePriority = "team-a", "high"
			}, agent.Auto,
			[]want{{"queue", Blocked, "the cluster has no WorkloadPriorityClass high", "oc get workloadpriorityclasses"}},
			agent.RDMA, fail.QueueUnavailable,
		},
		{
			"a queue that may not be read", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				w.forbidden = []string{"get localqueues"}
				o.Request.Queue = "team-a"
			}, agent.Auto,
			[]want{{"queue", Unknown, "LocalQueue team-a", ""}}, agent.RDMA, "",
		},
		{
			"the file's queue, which the namespace does not have", barcelona, func(w *world, o *Options) {
				w.queue("team-b", "True", "")
				o.Request.Cluster.Nodes.Queue = "team-a"
			}, agent.Auto,
			[]want{{"queue", Blocked, "namespace nccl-test has no LocalQueue team-a", "oc get localqueues -n nccl-test"}}, agent.RDMA,
			fail.QueueUnavailable,
		},
		{
			"a queue that is not active", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "False", "Can't submit new workloads to clusterQueue")
				o.Request.Queue = "team-a"
			}, agent.Auto,
			[]want{{"queue", Blocked, "LocalQueue team-a is not active: Can't submit new workloads to clusterQueue", ""}}, agent.RDMA,
			fail.QueueUnavailable,
		},
		{
			"a queue without Kueue", barcelona, func(_ *world, o *Options) { o.Request.Queue = "team-a" }, agent.Auto,
			[]want{{"queue", Blocked, "team-a: the cluster has no Kueue", "administrator"}}, agent.RDMA, fail.QueueUnavailable,
		},
		{
			"Kueue ignores StatefulSets", barcelona, func(w *world, o *Options) {
				w.queue("team-a", "True", "")
				w.kueue = nil
				o.Request.Queue = "team-a"
			}, agent.Auto,
			[]want{{"queue", Blocked, "the pods would start without it", "integrations.frameworks"}}, agent.RDMA, fail.QueueUnavailable,
		},
		{
			"a node is not ready", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) {
					if n.Name == "moc-r4pcc02u16" {
						n.Status.Conditions[0].Status = corev1.ConditionFalse
					}
				})
			}, agent.Auto,
			[]want{{"node moc-r4pcc02u16", Warning, "it is not ready", "oc describe node"}, {"nodes", Warning, "of these 1 at this moment", ""}},
			agent.RDMA, "",
		},
		{
			"too few nodes have the rails", barcelona, func(w *world, o *Options) {
				o.Request.Nodes = 5
				w.each(func(n *corev1.Node) {
					if n.Name == "moc-r4pcc02u25-nairr" {
						delete(n.Status.Allocatable, "openshift.io/eno6np0rdma")
						delete(n.Status.Capacity, "openshift.io/eno6np0rdma")
					}
				})
			}, agent.Auto,
			[]want{{"rails", BlockedRDMA, "4 nodes have the resources of network.rdma.resources, want 5", "sriovnetworknodestates"},
				{"nodes", OK, "5 can be used", ""}}, agent.TCP, "",
		},
		{
			"another configuration comes", cairo, func(w *world, _ *Options) {
				w.each(func(n *corev1.Node) { n.Annotations[desiredConfig] = "rendered-worker-2" })
			}, agent.Auto,
			[]want{{"iommu", OK, "booted with iommu=pt (rendered-worker-1); another configuration is being rolled out", ""}}, agent.RDMA, "",
		},
		{
			"no machine configurations", cairo, func(w *world, _ *Options) { w.each(func(n *corev1.Node) { n.Annotations = nil }) }, agent.Auto,
			[]want{{"iommu", Unknown, "no machine configuration is named", "mlenv rdma"}}, agent.RDMA, "",
		},
		{
			"the class does not exist", cairo, func(w *world, _ *Options) { w.without("nfs-csi") }, agent.Auto,
			[]want{{"storage", Blocked, "class nfs-csi (storage.class_rwx) does not exist; the cluster has ocs-external-storagecluster-ceph-rbd",
				"correct storage.class_rwx"}}, agent.RDMA, fail.ClaimUnbound,
		},
		{
			"auto takes the other class", cairo, func(w *world, o *Options) { w.without("nfs-csi"); o.Request.Storage = cluster.AutoStorage },
			agent.Auto,
			[]want{{"storage", Warning, "storage auto then uses volumeClaimTemplates", ""}}, agent.RDMA, "",
		},
		{
			"the class cannot share", cairo, func(_ *world, o *Options) {
				o.Request.Cluster.Storage.ClassRWX = "ocs-external-storagecluster-ceph-rbd"
			}, agent.Auto,
			[]want{{"storage", Blocked, "openshift-storage.rbd.csi.ceph.com gives no ReadWriteMany filesystems", "--storage=volumeClaimTemplates"}},
			agent.RDMA, fail.ClaimUnbound,
		},
		{
			"an unknown provisioner", cairo, func(w *world, o *Options) {
				w.objects = append(w.objects, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "ours"}, Provisioner: "storage.example.com"})
				o.Request.Cluster.Storage.ClassRWX = "ours"
			}, agent.Auto,
			[]want{{"storage", Unknown, "whether this provisioner supports that is not known", "--storage=auto"}}, agent.RDMA, "",
		},
		{
			"claims are bound already", cairo, func(w *world, _ *Options) {
				w.without("nfs-csi")
				w.objects = append(w.objects, claim("ml-dev-workspace", corev1.ClaimBound), claim("ml-datasets", corev1.ClaimBound))
			}, agent.Auto,
			[]want{{"storage", OK, "claims ml-dev-workspace, ml-datasets are bound; about their class", ""}}, agent.RDMA, "",
		},
		{
			"a bound claim on NFS may have files of mode tcp", cairo, func(w *world, _ *Options) {
				w.objects = append(w.objects, claim("ml-dev-workspace", corev1.ClaimBound), claim("ml-datasets", corev1.ClaimBound))
			}, agent.Auto,
			[]want{{"storage owner", Unknown, "root_squash keeps them from each other's files", "docs/operate/rdma.md, NFS and root"}}, agent.RDMA,
			"",
		},
		{
			"a claim is lost", cairo, func(w *world, _ *Options) { w.objects = append(w.objects, claim("ml-datasets", corev1.ClaimLost)) },
			agent.Auto,
			[]want{{"storage", Blocked, "claim ml-datasets was bound to volume", "oc describe pvc"}}, agent.RDMA, fail.ClaimUnbound,
		},
		{
			"the cluster has no RDMA", cairo, func(_ *world, o *Options) { o.Request.Cluster.Network.RDMA.Enabled = false }, agent.Auto,
			[]want{{"rdma", BlockedRDMA, "network.rdma.enabled is false", "network.rdma.enabled"}}, agent.TCP, "",
		},
		{
			"and RDMA is wanted", cairo, func(_ *world, o *Options) { o.Request.Cluster.Network.RDMA.Enabled = false }, "rdma",
			[]want{{"rdma", BlockedRDMA, "network.rdma.enabled is false", ""}}, agent.RDMA, fail.RDMAUnavailable,
		},
		{
			"host devices without privilege", cairo, func(_ *world, o *Options) { o.Request.Cluster.Security.RequiresPrivilegedSCC = false },
			agent.Auto,
			[]want{{"rdma", BlockedRDMA, "security.requires_privileged_scc", ""}}, agent.TCP, "",
		},
		{
			"one node", cairo, func(_ *world, o *Options) { o.Request.Nodes = 1 }, agent.Auto,
			[]want{{"rdma", BlockedRDMA, "one node has no peer", ""}}, agent.TCP, "",
		},
		{
			"nodes without GPUs", cairo, func(_ *world, o *Options) { o.Request.GPUsPerNode = new(0) }, agent.Auto,
			[]want{{"rdma", BlockedRDMA, "the nodes have no GPUs", ""}, {"nodes", OK, "2 can be used", ""}}, agent.TCP, "",
		},
		{
			"a request that cannot be", cairo, func(_ *world, o *Options) { o.Request.Nodes = 3 }, agent.Auto,
			[]want{{"request", Blocked, "lists 2 nodes in nodes.gpu_nodes; want 1 to 2", ""}}, agent.RDMA, fail.InvalidInput,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, file := test.cluster(t)
			asked := Options{Request: objects.Request{Cluster: file}}
			test.change(w, &asked)
			report := w.examine(asked.Request.Cluster, test.mode, func(_ *Deps, o *Options) {
				o.ServiceAccount = asked.ServiceAccount
				o.Request.Image, o.Request.Routes, o.Request.Services = asked.Request.Image, asked.Request.Routes, asked.Request.Services
				o.Request.Queue, o.Request.QueuePriority = asked.Request.Queue, asked.Request.QueuePriority
				o.Request.GPUsPerNode = asked.Request.GPUsPerNode
				o.Request.Nodes, o.Request.ExcludeNodes, o.Request.Storage = asked.Request.Nodes, asked.Request.ExcludeNodes, asked.Request.Storage
			})
			for _, want := range test.want {
				if !said(report, want) {
					t.Errorf("want %s %s %q, fix %q in\n%s", want.check, want.status, want.seen, want.fix, print(report))
				}
			}
			if mode, why := report.Mode(); mode != test.decided {
				t.Errorf("mode %s because %s, want %s", mode, why, test.decided)
			}
			err := report.Err()
			if (err != nil) != (test.reason != "") || err != nil && fail.ReasonOf(err) != test.reason {
				t.Errorf("error %v, want reason %q", err, test.reason)
			}
			if t.Failed() {
				t.Log(print(report))
			}
		})
	}
}

func said(r Report, w want) bool {
	for _, check := range r.Checks {
		if check.Object == w.check && check.Status == w.status && strings.Contains(check.Seen, w.seen) && strings.Contains(check.Next, w.fix) {
			return true
		}
	}
	return false
}

func quota(name string, of corev1.ResourceName, hard, used string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "nccl-test"}, Status: corev1.ResourceQuotaStatus{
		Hard: corev1.ResourceList{of: resource.MustParse(hard)}, Used: corev1.ResourceList{of: resource.MustParse(used)},
	}}
}

func claim(name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "nccl-test"}}
	c.Status.Phase = phase
	c.Spec.AccessModes, c.Spec.StorageClassName = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, new("nfs-csi")
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("500Gi")}
	return c
}

// TestTriedPod: the dry run creates the pod of node 0, with the claims that its StatefulSet adds, under a name that no
// node has.
func TestTriedPod(t *testing.T) {
	w, file := barcelona(t)
	w.examine(file, agent.Auto)
	if len(w.asked) != 1 {
		t.Fatalf("%d pods were tried, want one", len(w.asked))
	}
	pod := w.asked[0]
	var claims []string
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			claims = append(claims, volume.Name+"="+volume.PersistentVolumeClaim.ClaimName)
		}
	}
	got := []string{pod.Name, pod.GenerateName, pod.Spec.Hostname, pod.Spec.Subdomain, pod.Annotations["k8s.v1.cni.cncf.io/networks"],
		strings.Join(claims, " ")}
	want := []string{"", "ml-dev-env-preflight-", "ml-dev-env-0", "ml-dev-env-headless",
		"default/eno5np0-network,default/eno6np0-network,default/eno7np0-network,default/eno8np0-network",
		"ml-dev-workspace=ml-dev-workspace-ml-dev-env-0 ml-dev-datasets=ml-dev-datasets-ml-dev-env-0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBlockedPlan: the plan of a request that cannot start has the checks that block it.
func TestBlockedPlan(t *testing.T) {
	w, file := cairo(t)
	w.uses = nil
	var client kubernetes.Interface
	report := w.examine(file, "rdma", func(d *Deps, _ *Options) { client = d.Clients.Kube })
	got := PlanOf(t.Context(), client, report)
	if !got.Blocked || !strings.HasPrefix(got.Verdict, "blocked because of pod (rdma): a dry run is refused: ") || len(got.Checks) < 10 {
		t.Errorf("got %+v", got)
	}
}

// TestUnanswered: if a cluster does not answer, the check's result is unknown, with the error.
func TestUnanswered(t *testing.T) {
	if got := unread("nodes", "the nodes", errors.New("connection refused")); !cmp.Equal(got,
		newCheck("nodes", Unknown, "", "the nodes: connection refused")) {
		t.Errorf("got %+v", got)
	}
}

// TestQueueOfEveryVersion requires that preflight accepts every version of Kueue that manages StatefulSets, in the version of the
// API that it serves.
func TestQueueOfEveryVersion(t *testing.T) {
	for _, version := range kueuetest.Versions {
		t.Run(version.Name, func(t *testing.T) {
			w, file := barcelona(t)
			w.queueIn(version, "team-a", "True", "")
			report := w.examine(file, agent.Auto, func(_ *Deps, o *Options) { o.Request.Queue, o.Request.QueuePriority = "team-a", "urgent" })
			for _, seen := range []string{
				"LocalQueue team-a of ClusterQueue gpus: 1 workload admitted, 2 waiting", "WorkloadPriorityClass urgent: priority 1000",
			} {
				if !said(report, want{"queue", OK, seen, ""}) {
					t.Errorf("want %q in\n%s", seen, print(report))
				}
			}
			if err := report.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
