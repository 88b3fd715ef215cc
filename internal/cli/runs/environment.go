// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// chosenAnnotation marks a run whose environment mlenv has chosen: a run like it need not use the same one.
const chosenAnnotation = project.LabelPrefix + "chosen-environment"

// mostOwn is how many environments of a user have names that can be read; further ones get a random name.
const mostOwn = 9

// choice is the environment of a run that names none: the default one, or else one of the user's own that is free, which mounts the same
// claims.
type choice struct {
	clients *kube.Clients
	values  map[string][]string
	notes   io.Writer
	// own is the user's first environment, "" if the run keeps the default one whatever happens.
	own string
	// suffix follows own if a run that was started at the same moment has taken the same name.
	suffix string
}

// chooseEnvironment names a free environment for a run that names none and would find the default one taken. Without shared claims its
// nodes would not have the datasets, so the run keeps the default one, as it does if it may wait or if this user may not read who
// holds it. A run that exists has chosen before.
func chooseEnvironment(ctx context.Context, clients *kube.Clients, pipeline *v1.Pipeline, runName string, values map[string][]string,
	notes io.Writer) *choice {
	const shared = objects.DefaultName
	c := &choice{clients: clients, values: values, notes: notes, suffix: rand.String(suffixLength)}
	if values["name"] != nil {
		return c
	}
	if runName != "" {
		existing, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, runName, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			if err == nil && launch.Values(existing)["name"] != nil {
				values["name"] = launch.Values(existing)["name"]
			}
			return c
		}
		// Two programs that start the run of that name make the same request.
		c.suffix = fmt.Sprintf("%x", sha256.Sum256([]byte(runName)))[:suffixLength]
	}
	if launch.ParamValue(pipeline, values, "name") != shared || launch.ParamValue(pipeline, values, "on-busy") == "wait" ||
		launch.ParamValue(pipeline, values, "storage") == string(cluster.NodeStorage) ||
		!sharesWorkspace(ctx, clients, launch.ParamValue(pipeline, values, "cluster")) {
		return c
	}
	person, err := lease.Person(ctx, clients.Kube)
	if err != nil {
		return c
	}
	c.own = shared + "-" + shortName(person.ID)
	if holder, held := holderOf(ctx, clients, unfinished(ctx, clients), shared); held {
		by := holder.String()
		if holder.ID == person.ID {
			by = "you"
		}
		c.take(ctx, fmt.Sprintf("Environment %s is held by %s", shared, by))
	}
	return c
}

// take names the first environment of the user that is free.
func (c *choice) take(ctx context.Context, why string) {
	name, runs := c.own, unfinished(ctx, c.clients)
	for i := 2; ; i++ {
		if _, held := holderOf(ctx, c.clients, runs, name); !held {
			break
		}
		if i > mostOwn {
			name = c.own + "-" + c.suffix
			break
		}
		name = fmt.Sprintf("%s-%d", c.own, i)
	}
	c.use(name, why)
}

func (c *choice) use(name, why string) {
	fmt.Fprintf(c.notes, "%s. This run uses environment %s, with the same claims; --name chooses another one.\n", why, name)
	c.values["name"] = []string{name}
}

// annotations marks a run whose environment mlenv has chosen.
func (c *choice) annotations() map[string]string {
	if c.own == "" || c.values["name"] == nil {
		return nil
	}
	return map[string]string{chosenAnnotation: "true"}
}

// start starts the run. Runs that are started at the same moment do not see each other when they choose. Each looks again once it
// exists; one that sees another run in its environment, and may be seen by it, gives way: it is deleted, and started again in an
// environment that no other run can name.
func (c *choice) start(ctx context.Context, request launch.Request) (*v1.PipelineRun, error) {
	request.Annotations = c.annotations()
	started, err := launch.Start(ctx, c.clients, request)
	if err != nil || c.own == "" || started.IsDone() {
		return started, err
	}
	rival := c.rival(ctx, started)
	if rival == "" {
		return started, nil
	}
	if err := launch.Delete(ctx, c.clients, started); err != nil {
		return started, nil //nolint:nilerr // who follows the run sees that its environment is busy, or that it is being deleted
	}
	c.use(c.own+"-"+c.suffix, fmt.Sprintf("Run %s was started in environment %s at the same moment", rival, launch.EnvironmentOf(started)))
	request.Annotations = c.annotations()
	return launch.Start(ctx, c.clients, request)
}

// rival returns another run in progress in the run's environment, "" for none.
func (c *choice) rival(ctx context.Context, started *v1.PipelineRun) string {
	for _, other := range unfinished(ctx, c.clients) {
		if other.UID != started.UID && launch.EnvironmentOf(&other) == launch.EnvironmentOf(started) {
			return other.Name
		}
	}
	return ""
}

// unfinished returns the runs that have not ended, none if they cannot be listed.
func unfinished(ctx context.Context, clients *kube.Clients) []v1.PipelineRun {
	runs, _ := launch.Unfinished(ctx, clients)
	return runs
}

// holderOf returns the run or user that holds the environment, or a run in progress that will hold it.
func holderOf(ctx context.Context, clients *kube.Clients, runs []v1.PipelineRun, name string) (holder lease.Holder, held bool) {
	client := env.Of(clients, name).Lease(slog.New(slog.DiscardHandler))
	if found, err := client.Find(ctx); err == nil && found.DeletionTimestamp == nil {
		if busy := client.ReadHolder(ctx, found); busy.Holder.ID != "" && !busy.Replaceable() {
			return busy.Holder, true
		}
	}
	// A run takes the Lease only after its image is built.
	i := slices.IndexFunc(runs, func(other v1.PipelineRun) bool { return launch.EnvironmentOf(&other) == name })
	if i < 0 {
		return lease.Holder{}, false
	}
	return lease.Holder{ID: string(runs[i].UID), Display: runs[i].Name, Run: true}, true
}

// sharesWorkspace reports whether several environments can mount the workspace claim, and nodes have none of their own. In a new
// namespace, without any claim, the cluster file decides.
func sharesWorkspace(ctx context.Context, clients *kube.Clients, clusterName string) bool {
	claims, names := clients.Kube.CoreV1().PersistentVolumeClaims(clients.Namespace), env.Of(clients, objects.DefaultName)
	file, fileErr := clusterfile.LoadInstalled(ctx, clients, clusterName)
	workspace := cmp.Or(file.Storage.WorkspaceClaim, names.Workspace)
	if workspace == names.Workspace {
		if _, err := claims.Get(ctx, names.NodeClaim(workspace, 0), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return false
		}
	}
	claim, err := claims.Get(ctx, workspace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fileErr == nil && file.Storage.ClassRWX != "" && file.Storage.Mode != cluster.NodeStorage
	}
	return err == nil && objects.IsShared(claim)
}

// suffixLength is how many characters the random part of a name has.
const suffixLength = 5

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
