// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// mayRun refuses a run that its user could start but not see to its end, or not cancel. With folder the user sends one; a run that is only
// started needs less. Errors: PermissionDenied.
func mayRun(ctx context.Context, clients *kube.Clients, environment string, folder, followed bool) error {
	needed := []kube.Access{envflags.AccessTo(clients, "tekton.dev", "pipelineruns", "", "create")}
	if followed || folder {
		needed = []kube.Access{
			envflags.AccessTo(clients, "tekton.dev", "pipelineruns", "", "create", "get", "list", "watch", "patch"),
			envflags.AccessTo(clients, "tekton.dev", "taskruns", "", "list", "watch"),
		}
	}
	if folder {
		names := env.Of(clients, environment)
		needed = append(needed, envflags.AccessTo(clients, "apps", "statefulsets", names.Name, "get"),
			envflags.AccessTo(clients, "", "secrets", names.ClientSecret, "get"), envflags.AccessTo(clients, "", "pods/portforward", "", "create"))
	}
	return envflags.Allowed(ctx, clients, "starting a run", needed...)
}
