// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/pki"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// The users as which Multus and Whereabouts call the API server.
const (
	multusUser      = "localcluster:multus"
	whereaboutsUser = "localcluster:whereabouts"
	// multusNamespace is the namespace of both on OpenShift.
	multusNamespace = "openshift-multus"
)

// networks writes the configuration of a node's network plugins: Multus, including the cluster's own network, and
// Whereabouts. Multus could read that network from a separate file (clusterNetwork), but version 4.2.2 keeps only the
// fields that it knows of such a list, and then no pod's network could be removed. Without Multus, it writes only the
// cluster's own network. The name of that file comes after Multus' in the folder's order.
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
	// The name is fixed in Whereabouts, below the node's own /etc/cni.
	p.write(filepath.Join(nodeBinds(n)["/etc/cni"], "net.d", "whereabouts.d", "whereabouts.conf"), document{
		"kubernetes": document{"kubeconfig": p.networkKubeconfig("whereabouts", whereaboutsUser)},
	})
}

// networkKubeconfig writes a kubeconfig with Multus' namespace, in which Whereabouts keeps its pools.
func (p *plan) networkKubeconfig(name, user string) string {
	pair := p.issue(pki.Request{File: name, User: user})
	path := topology.State("pki", name+".kubeconfig")
	p.write(path, document{
		"apiVersion": "v1", "kind": "Config", "current-context": "localcluster",
		"clusters": []document{
			{"name": "localcluster", "cluster": document{"server": topology.APIServerURL, "certificate-authority": p.ca.CertPath()}}},
		"users": []document{{"name": name, "user": document{"client-certificate": pair.Cert, "client-key": pair.Key}}},
		"contexts": []document{
			{"name": "localcluster", "context": document{"cluster": "localcluster", "user": name, "namespace": multusNamespace}}},
	})
	return path
}

// separator separates the documents of a stream.
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
