// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// onServer returns the world as objects of an API server, with the PipelineRun of the step.
func (w *world) onServer(t *testing.T, namespace string) *apitest.Server {
	t.Helper()
	server := apitest.Start(t, w.objects...)
	server.Groups = w.groups
	// Admission of OpenShift writes which constraint admits a pod.
	server.Admit = func(path string, object apitest.Object) {
		if strings.Contains(path, "/pods/") {
			annotations := map[string]any{objects.AdmittedByAnnotation: "restricted-v2", admittedFor: forPodAccount}
			object["metadata"].(apitest.Object)["annotations"] = annotations
		}
	}
	for resource, others := range w.others {
		for _, other := range others {
			at := "/apis/" + resource.GroupVersion().String()
			if other.GetNamespace() != "" {
				at += "/namespaces/" + other.GetNamespace()
			}
			server.Put(at+"/"+resource.Resource+"/"+other.GetName(), other.Object)
		}
	}
	own := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train-1", UID: "uid-1"}}
	own.Status.StartTime = new(metav1.Now())
	server.Add(own)
	return server
}

// Whichever request to the API server fails once, and however, the checks, the verdict and what the step notes of it are the same.
func TestEveryRequestMayFail(t *testing.T) {
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		w, file := barcelona(t)
		w.objects = slices.DeleteFunc(w.objects, func(object runtime.Object) bool {
			node, ok := object.(*corev1.Node)
			return ok && !slices.Contains(file.Nodes.GPUNodes[:2], node.Name)
		})
		file.Nodes.GPUNodes = file.Nodes.GPUNodes[:2]
		server := w.onServer(t, file.Cluster.Namespace)
		clients := server.Clients(wrap)
		clients.Namespace, clients.InCluster = file.Cluster.Namespace, true // with the time of a step
		o := optionsOf(file, agent.Auto)
		o.Run = run.Flags{Name: "train-1", UID: "uid-1", Task: "preflight"}
		report, err := Run(t.Context(), Deps{Clients: clients, Log: slog.New(slog.DiscardHandler)}, o)
		memory, notRead := receipt.ReadJournal(t.Context(), server.Clients(nil).Kube, clients.Namespace, "train-1")
		text := fmt.Sprint(fail.ReasonOf(err), " ", err, notRead, " ", report.Verdict(), "\n", print(report))
		if part := memory.EntryOf("preflight"); part != nil {
			text += fmt.Sprint(part.Status, part.Reason, part.Mode)
		}
		return strings.ReplaceAll(text, clients.Config.Host, "") + "\n" + strings.Join(server.Paths(), " ")
	})
}
