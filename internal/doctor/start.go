// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (e *examination) examineStart() {
	e.unreadable()
	causes := diagnose.Explain(e.cluster, e.now)
	for _, f := range causes {
		evidence := f.Seen
		if !f.Since.IsZero() {
			evidence += fmt.Sprintf(" (since %s)", formatAge(e.now.Sub(f.Since)))
		}
		finding := e.found(f.Reason, f.Object, evidence, f.Next)
		finding.Level, finding.Flow = fail.Broken, Start
	}
	if starting := e.starting(); len(causes) == 0 && starting != "" {
		e.found(PodsStarting, "environment "+e.env.Name, starting, e.watch())
	}
	for _, n := range e.nodes {
		e.attachments(n)
	}
	e.leaseState()
}

// starting describes the pods that have not started, without a known problem.
func (e *examination) starting() string {
	var lines []string
	for _, n := range e.nodes {
		if e.clusterErr == nil && n.health == nil && !n.running() {
			lines = append(lines, n.pod+": "+n.state)
		}
	}
	return strings.Join(lines, "; ")
}

// watch returns the command that follows the pods.
func (e *examination) watch() string {
	return fmt.Sprintf("oc get pods -n %s -l %s=%s -w", e.env.Namespace, objects.EnvironmentLabel, e.env.Name)
}

// leaseState has the findings about the environment's Lease.
func (e *examination) leaseState() {
	switch {
	case e.ending:
		e.found(BeingDeleted, "environment "+e.env.Name, "its lease is being deleted, with everything except the claims", e.watch())
	case e.lease != nil && e.lease.Replaceable():
		e.found(HolderGone, "environment "+e.env.Name, e.lease.Describe(),
			fmt.Sprintf("mlenv down %s -n %s --force (this releases pods and GPUs; claims stay)", e.env.Name, e.env.Namespace))
	}
}

// networksGiven is Multus' annotation with the networks that a pod got.
const networksGiven = "k8s.v1.cni.cncf.io/network-status"

// attachments compares the networks of a running pod with the requested ones.
func (e *examination) attachments(n *node) {
	if !n.running() {
		return
	}
	networks := strings.ReplaceAll(n.object.Annotations[objects.NetworksAnnotation], " ", "")
	// The annotation may also be JSON, which this project does not write.
	if networks == "" || strings.HasPrefix(networks, "[") {
		return
	}
	asked := strings.Split(networks, ",")
	var given []struct {
		Name    string `json:"name"`
		Default bool   `json:"default"`
	}
	next := fmt.Sprintf("oc get pod %s -n %s -o yaml | grep -A40 %s; oc get pods -n openshift-multus -o wide", n.pod, e.env.Namespace,
		networksGiven)
	if err := json.Unmarshal([]byte(n.object.Annotations[networksGiven]), &given); err != nil {
		e.found(AttachmentMissing, n.String(),
			fmt.Sprintf("the pod requests %s, but its annotation %s lists no networks: does the cluster have Multus?", strings.Join(asked, ", "),
				networksGiven), next)
		return
	}
	attached := map[string]bool{}
	for _, network := range given {
		attached[network.Name] = !network.Default
	}
	var missing []string
	for _, name := range asked {
		// "default/eno5np0-network@net1" is a network and the name of its interface.
		name, _, _ = strings.Cut(name, "@")
		if !strings.Contains(name, "/") {
			name = e.env.Namespace + "/" + name
		}
		if !attached[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		e.found(AttachmentMissing, n.String(), fmt.Sprintf("the pod requests %s, but lacks %s", strings.Join(asked, ", "),
			strings.Join(missing, ", ")), next)
	}
}
