package objects

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// variables are the container's, for the agent and for `oc exec`. The agent adds what only the node itself knows.
func (b builder) variables() []corev1.EnvVar {
	vars := []corev1.EnvVar{
		{Name: "MLENV_NAME", Value: b.Name},
		{Name: "MLENV_MODE", Value: string(b.Mode)},
		{Name: "MLENV_HEADLESS", Value: b.names.Suffix(b.Namespace)},
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		field("POD_IP", "status.podIP"),
		field("NODE_NAME", "spec.nodeName"),
		field("NODE_RANK", "metadata.labels['apps.kubernetes.io/pod-index']"),
		{Name: "GPUS_PER_NODE", Value: strconv.Itoa(b.GPUsPerNode)},
		{Name: "DEEPSPEED_HOSTFILE", Value: agent.Hostfile},
	}
	world := agent.World{Master: b.names.TLSName(b.Namespace, 0), Nodes: b.Nodes, RanksPerNode: b.GPUsPerNode}
	return slices.Concat(vars, variables(world.Variables()), b.networkVariables(), b.caVariables(), b.proxyVariables())
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// networkVariables are NCCL's. In mode RDMA the agents set most of them.
func (b builder) networkVariables() []corev1.EnvVar {
	tcp := b.Cluster.Network.TCP
	vars := variables(nccl.OfPods(b.Cluster.NCCL.Debug, tcp.P2PLevel))
	if b.Mode == RDMA {
		return vars
	}
	return append(vars, variables(nccl.SocketsOnly(tcp.InterfaceExclude))...)
}

// variables are sorted by name: a map has no order, and the order of a pod's variables is part of its template.
func variables(env map[string]string) []corev1.EnvVar {
	vars := make([]corev1.EnvVar, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		vars = append(vars, corev1.EnvVar{Name: name, Value: env[name]})
	}
	return vars
}

const caFolder = "/etc/mlenv/ca"

// caVariables name the bundle to programs with CAs of their own.
func (b builder) caVariables() (vars []corev1.EnvVar) {
	if b.Cluster.Network.TrustedCA == "" {
		return nil
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	} {
		vars = append(vars, corev1.EnvVar{Name: name, Value: caFolder + "/" + cluster.TrustedCAKey})
	}
	return vars
}

// proxyVariables have both spellings: curl reads only http_proxy.
func (b builder) proxyVariables() (vars []corev1.EnvVar) {
	proxy := b.Cluster.Network.Proxy
	if proxy.HTTP == "" && proxy.HTTPS == "" {
		return nil
	}
	// The nodes' own names end in .svc.
	direct := slices.Concat(proxy.NoProxy, []string{"localhost", "127.0.0.1", ".svc", ".svc.cluster.local"})
	for _, v := range []corev1.EnvVar{
		{Name: "HTTP_PROXY", Value: proxy.HTTP}, {Name: "HTTPS_PROXY", Value: proxy.HTTPS}, {Name: "NO_PROXY", Value: strings.Join(direct, ",")},
	} {
		if v.Value != "" {
			vars = append(vars, v, corev1.EnvVar{Name: strings.ToLower(v.Name), Value: v.Value})
		}
	}
	return vars
}
