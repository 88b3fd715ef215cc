// SPDX-License-Identifier: Apache-2.0

// Package names has the names and the labels of an environment's objects. Only the packages of env can import it, so all others work with
// an env.Environment or an objects.Request, and make up no name themselves.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// Labels of every object of an environment.
const (
	nameLabel      = "app.kubernetes.io/name"
	managedByLabel = "app.kubernetes.io/managed-by"
	product        = "ml-dev-env"
)

// Names has the names of an environment and of its objects.
type Names struct {
	Name, Namespace string
	StatefulSet     string
	// Service is headless: it only gives the nodes their DNS names.
	Service string
	// Workspace and Datasets are the shared claims unless the cluster file names others, the templates of each node's own, and the
	// pods' volumes.
	Workspace, Datasets string
	// Lease owns the other objects, except claims.
	Lease string
	// ServerSecret has the agents' certificate, ClientSecret the steps'.
	ServerSecret, ClientSecret string
	// MetricsSecret has the certificate with which Prometheus reads the agents' metrics, as PodMonitor tells it to.
	MetricsSecret, PodMonitor string
	// UseConfig is the ConfigMap with the certificate that may only read when the environment was used last.
	UseConfig string
	// NodeZero is the Service of the programs on node 0; ServicesSecret lists them, with their passwords and tokens.
	NodeZero, ServicesSecret string
}

// Of returns the names of environment name's objects. What can ask the cluster uses env.Environment, and what has a Request its Names.
func Of(namespace, name string) Names {
	claims := name
	if name == agent.DefaultName || agent.SharesClaims(name) {
		claims = "ml-dev" // the claims that the earlier scripts created have these names
	}
	return Names{
		Name: name, Namespace: namespace,
		StatefulSet:  name,
		Service:      name + "-headless",
		Workspace:    claims + "-workspace",
		Datasets:     claims + "-datasets",
		Lease:        name,
		ServerSecret: name + "-agent-server",
		ClientSecret: name + "-agent-client",

		MetricsSecret: name + "-agent-metrics",
		PodMonitor:    name,
		UseConfig:     name + "-agent-use",

		NodeZero:       name,
		ServicesSecret: name + "-services",
	}
}

// String names the environment in messages.
func (n Names) String() string { return n.Namespace + "/" + n.Name }

// RouteName returns the name of the Route that leads to a service.
func (n Names) RouteName(service string) string { return n.Name + "-" + service }

// ShowCredential returns the command that shows the password or token of a service.
func (n Names) ShowCredential(s agent.Service) string {
	return fmt.Sprintf(`oc get secret %s -n %s -o go-template='{{index .data "%s" | base64decode}}'`, n.ServicesSecret, n.Namespace, s.Key)
}

// PodName returns the name of a node's pod; nodes count from 0.
func (n Names) PodName(node int) string { return n.StatefulSet + "-" + strconv.Itoa(node) }

// NodeClaim returns the claim that the StatefulSet creates for a node from a template.
func (n Names) NodeClaim(template string, node int) string { return template + "-" + n.PodName(node) }

// MountedClaims returns the claims of a volume in an existing environment of count nodes: the one that the nodes share, or one of
// each node. Without a StatefulSet it is the one that the environment's name gives.
func (n Names) MountedClaims(set *appsv1.StatefulSet, volume string, count int) (claims []string) {
	if set != nil && len(set.Spec.VolumeClaimTemplates) > 0 {
		for node := range count {
			claims = append(claims, n.NodeClaim(volume, node))
		}
		return claims
	}
	if set != nil {
		for _, v := range set.Spec.Template.Spec.Volumes {
			if v.Name == volume && v.PersistentVolumeClaim != nil {
				return []string{v.PersistentVolumeClaim.ClaimName}
			}
		}
	}
	return []string{volume}
}

// RecordClaims returns the claims with the record of a run of count nodes, in the environment of a StatefulSet, which may be nil: one, or
// one with the part of each node.
func (n Names) RecordClaims(set *appsv1.StatefulSet, count int) []string {
	return n.MountedClaims(set, n.Workspace, count)
}

// Suffix follows the pod's name in its DNS name.
func (n Names) Suffix() string { return n.Service + "." + n.Namespace + ".svc" }

// TLSName returns the DNS name of a node, which its agent's certificate has.
func (n Names) TLSName(node int) string { return n.PodName(node) + "." + n.Suffix() }

// LocalHost returns the name under which a browser reaches forwarded ports of the environment, and of no other one. Browsers connect names
// below localhost to their own machine, and keep the cookies of each name apart. cluster is the API server's address, or "".
func (n Names) LocalHost(cluster string) string {
	const most, digits = 50, 8
	sum := sha256.Sum256([]byte(cluster + "\n" + n.Namespace + "\n" + n.Name))
	// One label, because a browser takes environments with a common ending for one site.
	return strings.TrimRight(n.Name[:min(most, len(n.Name))], "-") + "-" + hex.EncodeToString(sum[:])[:digits] + ".localhost"
}

// Selector finds the pods of environment name, and every object of it.
func Selector(name string) labels.Set {
	return labels.Set{nameLabel: product, project.EnvironmentLabel: name}
}

// Labels returns the labels of every object of environment name.
func Labels(name string) map[string]string {
	return map[string]string{managedByLabel: product, nameLabel: product, project.EnvironmentLabel: name}
}
