// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// fewRights is how many rights are granted one by one rather than with the whole Role.
const fewRights = 3

// isAllowed reviews whether an account may do something, with a review that needs only a Role; the account "" is the caller.
func (p *probe) isAllowed(ctx context.Context, account string, a authorizationv1.ResourceAttributes) (bool, error) {
	if account == "" {
		a.Namespace = p.Request.Namespace
		return kube.CanI(ctx, p.Clients.Kube, a)
	}
	allowed, err := kube.AccountMay(ctx, p.Clients.Kube, p.Request.Namespace, account, a)
	return allowed, err
}

// permissions compares the rights of the steps' account with the Role of mlenv install.
func (p *probe) permissions(ctx context.Context) []Check {
	needed, looking := install.RoleRules()
	user := kube.Account(p.Request.Namespace, p.ServiceAccount)
	if p.ServiceAccount == "" {
		user = kube.WhoAsks(ctx, p.Clients.Kube)
	}
	return []Check{
		p.rights(ctx, neededCheck, user, needed, Blocked),
		p.rights(ctx, lookingCheck, user, looking, Warning),
	}
}

func (p *probe) rights(ctx context.Context, name, user string, rules []rbacv1.PolicyRule, lacking Status) Check {
	rights := p.useful(rules)
	may := func(ctx context.Context, asked authorizationv1.ResourceAttributes) (bool, error) {
		return p.isAllowed(ctx, p.ServiceAccount, asked)
	}
	missing, err := kube.Refused(ctx, may, rights)
	if err != nil {
		return unread(name, "what "+user+" may do", err)
	}
	if len(missing) == 0 {
		return newCheck(name, OK, "", "%s has the %s that the Role of mlenv install gives", user, humanize.Count(len(rights), "right"))
	}
	var texts, grants []string
	for _, r := range missing {
		texts = append(texts, strings.Join(r.Verbs, ", ")+" "+r.Resource.String())
		grants = append(grants, kube.GrantCommands(user, strings.Join(r.Verbs, ","), r.Resource.Resource, r.Resource.Group, p.Request.Namespace))
	}
	next := strings.Join(grants, "\n")
	if len(missing) > fewRights {
		next = fmt.Sprintf("mlenv install clusters/%s.yaml -n %s", p.file.Cluster.Name, p.Request.Namespace)
		if p.ServiceAccount != "" && p.ServiceAccount != launch.ServiceAccount {
			next += " --service-account=" + p.ServiceAccount
		}
	}
	return newCheck(name, lacking, next, "%s may not %s in namespace %s", user, strings.Join(texts, "; "), p.Request.Namespace).because(
		fail.PermissionDenied)
}

// useful returns the rights to resources that the cluster has and the request uses.
func (p *probe) useful(rules []rbacv1.PolicyRule) []kube.Access {
	unused := map[string]bool{buildGroup: !p.building, imageGroup: !p.building, routeGroup: !p.Request.Routes, attachmentGroup: !p.rdma}
	var rights []kube.Access
	for _, rule := range rules {
		group := rule.APIGroups[0]
		// Every cluster has Kubernetes' own groups; all other groups have a dot.
		foreign := strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
		if unused[group] || foreign && !p.groups[group] {
			continue
		}
		for _, resource := range rule.Resources {
			rights = append(rights, kube.Access{Resource: schema.GroupResource{Group: group, Resource: resource}, Verbs: rule.Verbs})
		}
	}
	return rights
}
