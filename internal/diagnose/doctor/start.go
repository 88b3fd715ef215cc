package doctor

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func (e *examination) start() []Finding {
	all := e.unreadable()
	causes := diagnose.Explain(e.cluster, e.now)
	for _, f := range causes {
		evidence := f.Seen
		if !f.Since.IsZero() {
			evidence += fmt.Sprintf(" (since %s)", age(e.now.Sub(f.Since)))
		}
		finding := newFinding(f.Reason, f.Object, evidence, f.Next).as(fail.Broken)
		finding.Flow = Start
		all = append(all, finding)
	}
	if starting := e.starting(); len(causes) == 0 && starting != "" {
		all = append(all, newFinding(PodsStarting, "environment "+e.name, starting,
			e.watch()))
	}
	for _, n := range e.nodes {
		all = append(all, n.attachments(e.namespace)...)
	}
	return append(all, e.leaseState()...)
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

// watch is the command that follows the pods.
func (e *examination) watch() string {
	return fmt.Sprintf("oc get pods -n %s -l %s=%s -w", e.namespace, objects.EnvironmentLabel, e.name)
}

// leaseState has the findings about the environment's Lease.
func (e *examination) leaseState() []Finding {
	free := fmt.Sprintf("mlenv down %s -n %s --force (this releases pods and GPUs; claims stay)", e.name, e.namespace)
	switch {
	case e.ending:
		return []Finding{newFinding(BeingDeleted, "environment "+e.name, "its lease is being deleted, with everything except the claims", e.watch())}
	case e.lease != nil && e.lease.Replaceable():
		return []Finding{newFinding(HolderGone, "environment "+e.name, e.lease.State(), free)}
	}
	return nil
}

// networksGiven is Multus' annotation with the networks that a pod got.
const networksGiven = "k8s.v1.cni.cncf.io/network-status"

// attachments compares the networks of a running pod with the requested ones.
func (n *node) attachments(namespace string) []Finding {
	if !n.running() || n.object.Annotations[objects.NetworksAnnotation] == "" {
		return nil
	}
	asked := strings.Split(strings.ReplaceAll(n.object.Annotations[objects.NetworksAnnotation], " ", ""), ",")
	var given []struct {
		Name    string `json:"name"`
		Default bool   `json:"default"`
	}
	// The annotation may also be JSON, which this project does not write.
	if strings.HasPrefix(asked[0], "[") {
		return nil
	}
	next := fmt.Sprintf("oc get pod %s -n %s -o yaml | grep -A40 %s; oc get pods -n openshift-multus -o wide", n.pod, namespace, networksGiven)
	if err := json.Unmarshal([]byte(n.object.Annotations[networksGiven]), &given); err != nil {
		return []Finding{newFinding(AttachmentMissing, n.String(),
			fmt.Sprintf("the pod requests %s, but its annotation %s lists no networks: does the cluster have Multus?", strings.Join(asked, ", "), networksGiven), next)}
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
			name = namespace + "/" + name
		}
		if !attached[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []Finding{newFinding(AttachmentMissing, n.String(), fmt.Sprintf("the pod requests %s, but lacks %s", strings.Join(asked, ", "), strings.Join(missing, ", ")), next)}
}
