package cluster

import (
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/pki"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// The users that Multus and Whereabouts are for the API server.
const (
	multusUser      = "localcluster:multus"
	whereaboutsUser = "localcluster:whereabouts"
	// multusNamespace is OpenShift's for both.
	multusNamespace = "openshift-multus"
)

// networks writes the configuration of a node's network plugins: Multus, with the
// cluster's own network in it, and what Whereabouts reads. Multus could have that
// network from a file of its own (clusterNetwork), but version 4.2.2 keeps of such a
// list what it knows itself, and no pod's network could be taken down. Without Multus
// there is the cluster's own network, whose file comes after Multus' in the folder's order.
func (p *plan) networks(n topology.Netns) {
	if p.options.NoNetworks {
		p.write(filepath.Join(n.Dir(), "net.d", "10-cluster.conflist"), cniConfig(n))
		return
	}
	p.write(filepath.Join(n.Dir(), "net.d", "00-multus.conf"), document{
		"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus",
		"kubeconfig": p.networkKubeconfig("multus", multusUser),
		"binDir":     cniDir, "delegates": []document{cniConfig(n)},
		// As on OpenShift, pods use attachments of their own namespace and of default.
		"namespaceIsolation": true, "globalNamespaces": "default," + multusNamespace, "multusNamespace": multusNamespace,
		"capabilities": document{"portMappings": true},
		"logFile":      filepath.Join(n.Dir(), "multus.log"), "logLevel": "verbose", "logToStderr": false,
	})
	// The name that Whereabouts has fixed, below the node's own /etc/cni.
	p.write(filepath.Join(nodeBinds(n)["/etc/cni"], "net.d", "whereabouts.d", "whereabouts.conf"), document{
		"kubernetes": document{"kubeconfig": p.networkKubeconfig("whereabouts", whereaboutsUser)},
	})
}

// networkKubeconfig is one whose namespace is Multus', where Whereabouts keeps its pools.
func (p *plan) networkKubeconfig(name, user string) string {
	pair := p.issue(pki.Request{File: name, User: user})
	path := topology.State("pki", name+".kubeconfig")
	p.write(path, document{
		"apiVersion": "v1", "kind": "Config", "current-context": "localcluster",
		"clusters": []document{{"name": "localcluster", "cluster": document{"server": topology.APIServerURL, "certificate-authority": p.ca.CertPath()}}},
		"users":    []document{{"name": name, "user": document{"client-certificate": pair.Cert, "client-key": pair.Key}}},
		"contexts": []document{{"name": "localcluster", "context": document{"cluster": "localcluster", "user": name, "namespace": multusNamespace}}},
	})
	return path
}

// separator is between the documents of a stream.
const separator = "\n---\n"

// definitions returns the CustomResourceDefinitions among the documents. They are applied first.
func definitions(manifests string) string {
	var found []string
	for document := range strings.SplitSeq(manifests, separator) {
		if strings.Contains("\n"+document, "\nkind: CustomResourceDefinition\n") {
			found = append(found, document)
		}
	}
	return strings.Join(found, separator)
}
