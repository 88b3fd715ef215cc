// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// reports returns the snapshots of testdata/reports: objects as the API server showed them in public reports, of an environment that asks
// for one pod.
func reports(t *testing.T) map[string]Snapshot {
	t.Helper()
	files, err := filepath.Glob("testdata/reports/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %v: %v", files, err)
	}
	all := map[string]Snapshot{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := Snapshot{StatefulSet: snapshotOf(1).StatefulSet}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			add(t, &s, file, []byte(document))
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = s
	}
	return all
}

func add(t *testing.T, s *Snapshot, file string, document []byte) {
	t.Helper()
	var kind struct{ Kind string }
	err := yaml.Unmarshal(document, &kind)
	var pod corev1.Pod
	var event corev1.Event
	var node corev1.Node
	switch kind.Kind {
	case "Pod":
		err = yaml.UnmarshalStrict(document, &pod)
		asked := s.StatefulSet.Spec.Template.Spec.DeepCopy()
		asked.NodeName, asked.SchedulingGates = pod.Spec.NodeName, pod.Spec.SchedulingGates
		pod.Spec = *asked
		s.Pods = append(s.Pods, pod)
	case "Event":
		err = yaml.UnmarshalStrict(document, &event)
		s.Events = append(s.Events, event)
	case "Node":
		err = yaml.UnmarshalStrict(document, &node)
		s.Nodes = append(s.Nodes, node)
	default:
		t.Errorf("%s: kind %q", file, kind.Kind)
	}
	if err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
