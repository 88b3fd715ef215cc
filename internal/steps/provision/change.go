// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/certs"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// answerTime is how long nodes may take to report what they run. nvidia-smi alone may need 20 seconds on a node whose
// driver was idle.
const answerTime = 40 * time.Second

// certificates are new for a new environment. For an existing one they are the mounted client's; the server's are in
// the cluster.
func (p *provisioner) certificates(ctx context.Context, live *appsv1.StatefulSet) (objects.Certificates, agent.Credentials, error) {
	if live != nil {
		credentials, err := p.environment().Credentials(ctx, p.options.ClientCerts)
		if err == nil {
			return objects.Certificates{}, credentials, nil
		}
		if reason := fail.ReasonOf(err); reason != fail.EnvironmentMissing && !errors.Is(err, fs.ErrNotExist) {
			return objects.Certificates{}, agent.Credentials{}, err
		}
		p.log.Info("New certificates are created; running agents load them within two minutes.")
	}
	// A person trains from inside an environment, which is kept for that; a run's training commands no node.
	made, err := certs.New(p.request.Namespace, p.request.Name, p.now(), p.options.KeepFor > 0)
	if err != nil {
		return made, agent.Credentials{}, err
	}
	if p.holder.Run {
		made.ReaperCert, made.ReaperKey = nil, nil // only a person's environment is released for want of use
	}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	return made, credentials, err
}

// change prepares an existing environment that differs from the request: if applying is not enough, it deletes the
// pods first. changed reports whether the environment is no longer what it was. Sizes of claims make no difference: claims that exist
// are expanded one by one. want keeps the claims of a StatefulSet that stays, which is immutable.
func (p *provisioner) change(ctx context.Context, live, want *appsv1.StatefulSet, credentials agent.Credentials) (changed bool, err error) {
	kept := want.DeepCopy()
	objects.KeepClaimSizes(live, kept)
	differences := objects.Differences(live, kept)
	if len(differences) == 0 {
		want.Spec.VolumeClaimTemplates = kept.Spec.VolumeClaimTemplates
		p.log.Info("The environment exists already, as requested.")
		return false, nil
	}
	var text []string
	recreate := false
	needs := map[objects.Change]string{objects.Recreate: " (needs new pods)", objects.Immutable: " (immutable: needs a new StatefulSet)"}
	for _, d := range differences {
		text = append(text, d.String()+needs[d.Change])
		recreate = recreate || d.Change != objects.Live
	}
	list := strings.Join(text, "\n  ")
	if p.options.OnChange != "recreate" {
		return false, fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "changing environment %s/%s: it differs from the request:\n  %s",
			p.request.Namespace, p.request.Name, list),
			"request what exists, tear it down first, or recreate its pods with --on-change=recreate")
	}
	if err := p.refuseRunning(ctx, live, credentials); err != nil {
		return false, err
	}
	p.log.Info("Changing the environment:\n  " + list)
	if !recreate {
		want.Spec.VolumeClaimTemplates = kept.Spec.VolumeClaimTemplates
		return true, nil
	}
	// The claims of templates stay: they have no owner.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = p.clients.Kube.AppsV1().StatefulSets(live.Namespace).Delete(ctx, live.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, kube.Problem(fmt.Errorf("deleting statefulset %s/%s: %w", live.Namespace, live.Name, err))
	}
	return true, p.environment().WaitGone(ctx, func(left []*corev1.Pod) {
		p.log.Info(fmt.Sprintf("Waiting until %d old pods are gone.", len(left)))
	})
}

// refuseRunning protects jobs: the error is EnvironmentDiffers unless every node is known to run none. A node whose
// container does not run has none; a node that does not answer may have one.
func (p *provisioner) refuseRunning(ctx context.Context, live *appsv1.StatefulSet, credentials agent.Credentials) error {
	e := p.environment()
	pods, err := e.Pods(ctx)
	if err != nil {
		return kube.Problem(err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	set := e.FirstNodes(objects.NodesOf(live), credentials)
	defer set.Close()
	return set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		name := e.PodName(client.Node())
		i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Name == name })
		if i < 0 || !running(&pods[i]) {
			return nil
		}
		var facts agent.Facts
		err := nodes.RetryUnreachable(ctx, func() (err error) {
			facts, err = client.Facts(ctx)
			return err
		})
		doing := fmt.Sprintf("changing environment %s", e)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			return fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "%s: node %d does not report whether it runs a training: %w", doing,
				client.Node(), err),
				"try again, or tear the environment down with whatever runs in it: mlenv down %s -n %s", p.request.Name, p.request.Namespace)
		case len(facts.Running) > 0:
			return fail.Becausef(fail.EnvironmentDiffers, "%s: node %d runs %s", doing, client.Node(), strings.Join(facts.Running, ", "))
		}
		return nil
	})
}
