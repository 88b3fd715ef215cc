// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Nodes creates the clients of all nodes, without waiting for the agents. certs is the folder of the mounted client Secret; if it
// is empty, as on a laptop, the Secret is read from the API server.
func (e Environment) Nodes(ctx context.Context, certs string) (nodes.Set, error) {
	set, err := e.StatefulSet(ctx)
	if apierrors.IsNotFound(err) {
		return nil, e.missing(ctx)
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("getting statefulset %s: %w", e, err))
	}
	credentials, err := e.Credentials(ctx, certs)
	if err != nil {
		return nil, err
	}
	return e.FirstNodes(objects.NodesOf(set), credentials), nil
}

// FirstNodes creates the clients of the first count nodes.
func (e Environment) FirstNodes(count int, credentials agent.Credentials) nodes.Set {
	dial := e.Dialer()
	var set nodes.Set
	for node := range count {
		set = append(set, agent.NewClient(node, e.TLSName(node), credentials, dial))
	}
	return set
}

// Credentials reads the mounted client Secret, or the Secret itself.
func (e Environment) Credentials(ctx context.Context, certs string) (agent.Credentials, error) {
	if certs != "" {
		credentials, err := agent.ReadCredentials(certs)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return credentials, err
		}
		if e.clients.InCluster {
			err = fail.Becausef(fail.EnvironmentMissing, "reading the environment's client certificate in %s: %w", certs, err)
			return agent.Credentials{}, fail.Advise(err,
				"provision the environment %s before this task starts, in the same PipelineRun by runAfter", e.Name)
		}
	}
	secret, err := e.clients.Kube.CoreV1().Secrets(e.Namespace).Get(ctx, e.ClientSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return agent.Credentials{}, e.missing(ctx)
	} else if err != nil {
		return agent.Credentials{}, kube.Problem(fmt.Errorf("getting the client certificate of environment %s: %w", e, err))
	}
	return agent.ParseCredentials(secret.Data["ca.crt"], secret.Data["tls.crt"], secret.Data["tls.key"])
}

func (e Environment) missing(ctx context.Context) error {
	if err := kube.NoNamespace(ctx, e.clients.Kube, e.Namespace); err != nil {
		return fail.Because(fail.EnvironmentMissing, err)
	}
	return fail.Advise(fail.Becausef(fail.EnvironmentMissing, "looking for environment %s: there is none", e),
		"mlenv up %s -n %s", e.Name, e.Namespace)
}
