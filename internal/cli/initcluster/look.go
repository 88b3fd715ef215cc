// SPDX-License-Identifier: Apache-2.0

// Package initcluster writes a cluster file from a live cluster, with comments about guesses and unknown values.
package initcluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

// openshift is the API group by which OpenShift is recognized.
const openshift = "security.openshift.io"

// Resources of OpenShift, of the SR-IOV operator and of NVIDIA's network operator.
var (
	constraints     = schema.GroupVersionResource{Group: openshift, Version: "v1", Resource: "securitycontextconstraints"}
	policies        = schema.GroupVersionResource{Group: "sriovnetwork.openshift.io", Version: "v1", Resource: "sriovnetworknodepolicies"}
	nicPolicies     = schema.GroupVersionResource{Group: "mellanox.com", Version: "v1alpha1", Resource: "nicclusterpolicies"}
	infrastructures = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "infrastructures"}
	proxies         = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "proxies"}
)

// Facts are what could be read.
type Facts struct {
	// Name of the cluster, "" for a guess. ServiceAccount is the account of the environment's pods.
	Name, Namespace, ServiceAccount string
	// API is the API server's host; APIGuess is why it may be wrong.
	API, APIGuess string
	// Nodes are those with GPUs.
	Nodes []corev1.Node
	// Pods are those on the nodes.
	Pods    []corev1.Pod
	Classes []storagev1.StorageClass
	// Claims exist in the namespace.
	Claims      []corev1.PersistentVolumeClaim
	Attachments []attachment.Definition
	// RDMA is isRdma of the resource's SriovNetworkNodePolicy.
	RDMA map[string]bool
	// Shared has the resources of the RDMA shared device plugin, each with the host's interfaces that its selector names, if it names any.
	Shared map[string][]string
	// Constraints are those that the pods' service account may use.
	Constraints []constraint
	OpenShift   bool
	Proxy       cluster.Proxy
	// Unknown is, by subject, why something could not be read.
	Unknown map[string]error
}

type constraint struct {
	name                string
	ipcLock, privileged bool
}

// The subjects of Unknown.
const (
	nodesSubject       = "nodes"
	podsSubject        = "pods of other namespaces"
	classesSubject     = "storage classes"
	claimsSubject      = "claims"
	attachmentsSubject = "network attachments"
	policiesSubject    = "SR-IOV node policies"
	nicPoliciesSubject = "NIC cluster policies"
	constraintsSubject = "security context constraints"
)

// inspectCluster reads what the user may read; the rest is Unknown. It fails if the API server cannot be reached, or does not know
// the user.
func inspectCluster(ctx context.Context, c *kube.Clients, name, serviceAccount string) (Facts, error) {
	f := Facts{Name: name, Namespace: c.Namespace, ServiceAccount: serviceAccount, Unknown: map[string]error{}, RDMA: map[string]bool{},
		Shared: map[string][]string{}}
	groups, err := c.Kube.Discovery().ServerGroups()
	if err != nil {
		return f, kube.Problem(fmt.Errorf("asking the API server for its groups: %w", err))
	}
	has := map[string]bool{}
	for _, group := range groups.Groups {
		has[group.Name] = true
	}
	f.OpenShift = has[openshift]
	f.address(ctx, c, has[infrastructures.Group])
	f.readNodes(ctx, c)
	classes, err := c.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if f.read(classesSubject, err) {
		f.Classes = classes.Items
	}
	claims, err := c.Kube.CoreV1().PersistentVolumeClaims(c.Namespace).List(ctx, metav1.ListOptions{})
	if f.read(claimsSubject, err) {
		f.Claims = claims.Items
	}
	if has[attachment.Resource().Group] {
		f.readAttachments(ctx, c)
	}
	if has[policies.Group] {
		list, err := c.Objects.Resource(policies).List(ctx, metav1.ListOptions{})
		if f.read(policiesSubject, err) {
			for i := range list.Items {
				name, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "resourceName")
				rdma, _, _ := unstructured.NestedBool(list.Items[i].Object, "spec", "isRdma")
				// The operator's prefix (k8snetworkplumbingwg/sriov-network-operator: RESOURCE_PREFIX on OpenShift).
				f.RDMA["openshift.io/"+name] = rdma
			}
		}
	}
	if has[nicPolicies.Group] {
		list, err := c.Objects.Resource(nicPolicies).List(ctx, metav1.ListOptions{})
		if f.read(nicPoliciesSubject, err) {
			for i := range list.Items {
				shared, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "rdmaSharedDevicePlugin", "config")
				f.readShared(shared)
				own, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "sriovDevicePlugin", "config")
				f.readOwn(own)
			}
		}
	}
	if f.OpenShift {
		f.readConstraints(ctx, c)
	}
	return f, nil
}

// readShared reads the configuration of the RDMA shared device plugin (Mellanox/k8s-rdma-shared-dev-plugin).
func (f *Facts) readShared(config string) {
	var plugin struct {
		ConfigList []struct {
			ResourceName   string
			ResourcePrefix string
			Devices        []string
			Selectors      struct{ IfNames []string }
		}
	}
	_ = json.Unmarshal([]byte(config), &plugin) // what cannot be read names no resource
	for _, pool := range plugin.ConfigList {
		prefix := cmp.Or(pool.ResourcePrefix, strings.TrimSuffix(cluster.SharedPrefix, "/"))
		f.Shared[prefix+"/"+pool.ResourceName] = append(pool.Devices, pool.Selectors.IfNames...)
	}
}

// readOwn reads the configuration of the SR-IOV network device plugin, which gives a pod devices of its own
// (k8snetworkplumbingwg/sriov-network-device-plugin). NVIDIA's operator uses it for whole cards, too, as nvidia.com/hostdev.
func (f *Facts) readOwn(config string) {
	type selector struct{ IsRdma bool }
	var plugin struct {
		ResourceList []struct {
			ResourceName   string
			ResourcePrefix string
			Selectors      json.RawMessage // one selector, or a list of them: a device meets any
		}
	}
	_ = json.Unmarshal([]byte(config), &plugin) // what cannot be read names no resource
	for _, pool := range plugin.ResourceList {
		var one selector
		var list []selector
		if json.Unmarshal(pool.Selectors, &list) != nil && json.Unmarshal(pool.Selectors, &one) == nil {
			list = []selector{one}
		}
		without := slices.Contains(list, selector{})
		f.RDMA[cmp.Or(pool.ResourcePrefix, "intel.com")+"/"+pool.ResourceName] = len(list) > 0 && !without
	}
}

// shared reports whether a resource is one of the RDMA shared device plugin.
func (f *Facts) shared(resource string) bool {
	_, known := f.Shared[resource]
	return known || strings.HasPrefix(resource, cluster.SharedPrefix)
}

// read reports whether there was no error, and stores an error as Unknown.
func (f *Facts) read(subject string, err error) bool {
	if err != nil {
		f.Unknown[subject] = kube.Problem(err)
	}
	return err == nil
}

// address sets the API server's own name on OpenShift, and else the kubeconfig's.
func (f *Facts) address(ctx context.Context, c *kube.Clients, onOpenShift bool) {
	host := c.Config.Host
	if onOpenShift {
		infrastructure, err := c.Objects.Resource(infrastructures).Get(ctx, "cluster", metav1.GetOptions{})
		if err == nil {
			if own, _, _ := unstructured.NestedString(infrastructure.Object, "status", "apiServerURL"); own != "" {
				host = own
			}
		}
		f.readProxy(ctx, c)
	}
	f.API = hostOf(host)
	name, _, _ := strings.Cut(f.API, ":")
	switch ip := net.ParseIP(name); {
	case name == "localhost", ip != nil && ip.IsLoopback():
		f.APIGuess = "cluster.api: the kubeconfig goes through this machine; use the API server's own name (oc whoami --show-server)"
	case strings.HasPrefix(name, "kubernetes.default"):
		f.APIGuess = "cluster.api: this is the name inside the cluster; use the one outside"
	}
}

// hostOf returns the host of a URL, with a port other than 443 and 6443.
func hostOf(address string) string {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	if slices.Contains([]string{"", "443", "6443"}, u.Port()) {
		return u.Hostname()
	}
	return u.Host
}

func (f *Facts) readProxy(ctx context.Context, c *kube.Clients) {
	object, err := c.Objects.Resource(proxies).Get(ctx, "cluster", metav1.GetOptions{})
	if err != nil {
		return
	}
	text := func(key string) string {
		value, _, _ := unstructured.NestedString(object.Object, "status", key)
		return value
	}
	f.Proxy = cluster.Proxy{HTTP: text("httpProxy"), HTTPS: text("httpsProxy")}
	for name := range strings.SplitSeq(text("noProxy"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			f.Proxy.NoProxy = append(f.Proxy.NoProxy, name)
		}
	}
}

func (f *Facts) readNodes(ctx context.Context, c *kube.Clients) {
	list, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if !f.read(nodesSubject, err) {
		return
	}
	for _, node := range list.Items {
		amount := node.Status.Capacity[gpu]
		if !amount.IsZero() || node.Labels["nvidia.com/gpu.present"] == "true" {
			f.Nodes = append(f.Nodes, node)
		}
	}
	slices.SortFunc(f.Nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, node := range f.Nodes {
		pods, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node.Name).String(),
		})
		if !f.read(podsSubject, err) {
			return
		}
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == node.Name {
				f.Pods = append(f.Pods, pod)
			}
		}
	}
}

// readAttachments reads the attachments that pods can use: in namespace default, which Multus shares with all, and in their own
// namespace.
func (f *Facts) readAttachments(ctx context.Context, c *kube.Clients) {
	namespaces := []string{"default", f.Namespace}
	for _, namespace := range slices.Compact(namespaces) {
		list, err := c.Objects.Resource(attachment.Resource()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if !f.read(attachmentsSubject, err) {
			continue
		}
		for i := range list.Items {
			f.Attachments = append(f.Attachments, attachment.Read(&list.Items[i]))
		}
	}
	slices.SortFunc(f.Attachments, func(a, b attachment.Definition) int { return strings.Compare(a.Name, b.Name) })
}

// readConstraints asks for each constraint whether the pods' service account may use it. If the user may not list them, it
// asks for the well-known names.
func (f *Facts) readConstraints(ctx context.Context, c *kube.Clients) {
	candidates := []constraint{{name: admin.OwnSCC, ipcLock: true}, {name: "privileged", ipcLock: true, privileged: true}}
	users := map[string][]string{}
	list, err := c.Objects.Resource(constraints).List(ctx, metav1.ListOptions{})
	if err == nil {
		candidates = nil
		for i := range list.Items {
			object := list.Items[i].Object
			allowed, _, _ := unstructured.NestedStringSlice(object, "allowedCapabilities")
			added, _, _ := unstructured.NestedStringSlice(object, "defaultAddCapabilities")
			privileged, _, _ := unstructured.NestedBool(object, "allowPrivilegedContainer")
			capabilities := slices.Concat(allowed, added)
			name := list.Items[i].GetName()
			candidates = append(candidates, constraint{
				name: name, privileged: privileged,
				ipcLock: slices.Contains(capabilities, "IPC_LOCK") || slices.Contains(capabilities, "*"),
			})
			users[name], _, _ = unstructured.NestedStringSlice(object, "users")
		}
	}
	for _, candidate := range candidates {
		allowed, err := kube.AccountMay(ctx, c.Kube, f.Namespace, f.ServiceAccount,
			authorizationv1.ResourceAttributes{Verb: "use", Group: openshift, Resource: constraints.Resource, Name: candidate.name})
		if !f.read(constraintsSubject, err) {
			return
		}
		if allowed || slices.Contains(users[candidate.name], kube.Account(f.Namespace, f.ServiceAccount)) {
			f.Constraints = append(f.Constraints, candidate)
		}
	}
}
