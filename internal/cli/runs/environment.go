package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// chooseEnvironment names an environment for a run that names none and would find the default one taken: the user's own,
// which mounts the same claims. Without shared claims its nodes would not have the datasets, so the run keeps the default
// one, as it does if it may wait or if this user may not read who holds it. A run that exists has chosen before.
func chooseEnvironment(ctx context.Context, clients *kube.Clients, pipeline *v1.Pipeline, runName string, values map[string][]string, notes io.Writer) {
	const shared = objects.DefaultName
	if values["name"] != nil {
		return
	}
	if runName != "" {
		existing, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, runName, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			if err == nil && launch.Values(existing)["name"] != nil {
				values["name"] = launch.Values(existing)["name"]
			}
			return
		}
	}
	if launch.Value(pipeline, values, "name") != shared || launch.Value(pipeline, values, "on-busy") == "wait" ||
		launch.Value(pipeline, values, "storage") == string(cluster.NodeStorage) {
		return
	}
	holder := holderOf(ctx, clients, shared)
	if holder == "" || !sharesWorkspace(ctx, clients) {
		return
	}
	person, err := leasesOf(clients).Person(ctx)
	if err != nil {
		return
	}
	own := shared + "-" + shortName(person.ID)
	fmt.Fprintf(notes, "Environment %s is held by %s. This run uses environment %s, with the same claims; --name chooses another one.\n", shared, holder, own)
	values["name"] = []string{own}
}

func leasesOf(clients *kube.Clients) lease.Client {
	log := slog.New(slog.DiscardHandler)
	return lease.Client{Kube: clients.Kube, Tekton: clients.Tekton, Namespace: clients.Namespace, Now: clients.Now, Log: log}
}

// holderOf is the run or user that holds the environment, or the run that will, "" for none.
func holderOf(ctx context.Context, clients *kube.Clients, name string) string {
	leases := leasesOf(clients)
	if found, err := leases.Find(ctx, name); err == nil && found.DeletionTimestamp == nil {
		if busy := leases.Look(ctx, found); busy.Holder.ID != "" && !busy.Replaceable() {
			return busy.Holder.String()
		}
	}
	// A run takes the Lease only after its image is built.
	list, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).List(ctx, metav1.ListOptions{LabelSelector: pipelineSelector})
	if err != nil {
		return ""
	}
	i := slices.IndexFunc(list.Items, func(other v1.PipelineRun) bool {
		return !other.IsDone() && cmp.Or(launch.ValueOf(&other, "name"), objects.DefaultName) == name
	})
	if i < 0 {
		return ""
	}
	return lease.Holder{Display: list.Items[i].Name, Run: true}.String()
}

// sharesWorkspace reports whether several environments can mount the workspace claim, and nodes have none of their own.
func sharesWorkspace(ctx context.Context, clients *kube.Clients) bool {
	claims, names := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace), objects.NamesOf(objects.DefaultName)
	if _, err := claims.Get(ctx, names.Workspace+"-"+names.PodName(0), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return false
	}
	claim, err := claims.Get(ctx, names.Workspace, metav1.GetOptions{})
	return err == nil && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

var noLetters = regexp.MustCompile(`[^a-z0-9]+`)

// shortName makes a part of an environment's name from the API server's name of a user, such as system:serviceaccount:ns:ci
// or h.kim@example.com.
func shortName(user string) string {
	const longest = 30
	user = user[strings.LastIndex(user, ":")+1:]
	user, _, _ = strings.Cut(strings.ToLower(user), "@")
	user = noLetters.ReplaceAllString(user, "-")
	return cmp.Or(strings.Trim(user[:min(len(user), longest)], "-"), "user")
}
