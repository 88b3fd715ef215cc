package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// certificates are made anew with every environment. Of one that lives the
// client's are read where they are mounted; the server's are in the cluster.
func (p *provisioner) certificates(ctx context.Context, live *appsv1.StatefulSet) (objects.Certificates, agent.Credentials, error) {
	if live != nil {
		credentials, err := nodes.Credentials(ctx, p.clients, p.request.Name, p.options.ClientCerts)
		if err == nil {
			return objects.Certificates{}, credentials, nil
		}
		if reason := fail.ReasonOf(err); reason != fail.EnvironmentMissing && !errors.Is(err, fs.ErrNotExist) {
			return objects.Certificates{}, agent.Credentials{}, err
		}
		p.log.Info("The certificates are made anew; running agents take them up within two minutes.")
	}
	made, err := certs.New(p.request.Namespace, p.request.Name, p.now())
	if err != nil {
		return made, agent.Credentials{}, err
	}
	credentials, err := agent.ParseCredentials(made.CA, made.ClientCert, made.ClientKey)
	return made, credentials, err
}

// change prepares an environment that lives and is not what is asked for: where
// applying is not enough its pods are deleted first. changed is true as soon as it
// is no longer what it was.
func (p *provisioner) change(ctx context.Context, live, want *appsv1.StatefulSet, credentials agent.Credentials) (changed bool, err error) {
	differences := objects.Differences(live, want)
	if len(differences) == 0 {
		p.log.Info("The environment is there already, as it is asked for.")
		return false, nil
	}
	var text []string
	anew := false
	for _, d := range differences {
		switch d.Change {
		case objects.Recreate:
			text, anew = append(text, d.String()+" (needs new pods)"), true
		case objects.Immutable:
			text, anew = append(text, d.String()+" (immutable: needs a new StatefulSet)"), true
		default:
			text = append(text, d.String())
		}
	}
	list := strings.Join(text, "\n  ")
	if p.options.OnChange != "recreate" {
		return false, fail.Advise(fail.Becausef(fail.EnvironmentDiffers, "making environment %s/%s: it lives and differs from what is asked for:\n  %s", p.request.Namespace, p.request.Name, list),
			"ask for what is there, tear it down first, or let its pods be made anew with --on-change=recreate")
	}
	if err := p.refuseRunning(ctx, live, credentials); err != nil {
		return false, err
	}
	p.log.Info("Changing the environment:\n  " + list)
	if !anew {
		return true, nil
	}
	// The claims of templates stay: they have no owner.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = p.clients.Kube.AppsV1().StatefulSets(live.Namespace).Delete(ctx, live.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, kube.Problem(fmt.Errorf("deleting statefulset %s/%s: %w", live.Namespace, live.Name, err))
	}
	return true, kube.WaitGone(ctx, p.clients.Kube, live.Namespace, objects.Selector(p.request.Name).String(), func(left []*corev1.Pod) {
		p.log.Info(fmt.Sprintf("Waiting until %d old pods are gone.", len(left)))
	})
}

// refuseRunning protects jobs. Nodes that do not answer run none that could be
// followed.
func (p *provisioner) refuseRunning(ctx context.Context, live *appsv1.StatefulSet, credentials agent.Credentials) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	count := 1
	if live.Spec.Replicas != nil {
		count = int(*live.Spec.Replicas)
	}
	set := nodes.New(p.clients, p.request.Name, count, credentials)
	defer set.Close()
	return set.Each(ctx, func(ctx context.Context, client *agent.Client) error {
		facts, err := client.Facts(ctx)
		if err == nil && len(facts.Running) > 0 {
			return fail.Becausef(fail.EnvironmentDiffers, "changing environment %s/%s: node %d runs %s", p.request.Namespace, p.request.Name, client.Node(), strings.Join(facts.Running, ", "))
		}
		return nil
	})
}
