package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// atOnce bounds the questions that are asked about permissions at a time.
const atOnce = 16

// fewRights is how many rights are granted one by one rather than with the whole Role.
const fewRights = 3

// right is a resource with verbs.
type right struct {
	group, resource string
	verbs           []string
}

func (r right) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	return strings.Join(r.verbs, ", ") + " " + resource
}

// may asks whether an account may do something, by a review that a Role is enough
// for; the account "" is whoever asks, whom everybody may ask about.
func (p *probe) may(ctx context.Context, account string, a authorizationv1.ResourceAttributes) (bool, error) {
	if account == "" {
		a.Namespace = p.Request.Namespace
		return kube.IMay(ctx, p.Clients.Kube, a)
	}
	allowed, _, err := kube.AccountMay(ctx, p.Clients.Kube, p.Request.Namespace, account, a)
	return allowed, err
}

// user is a service account as the API server names it.
func (p *probe) user(account string) string {
	return kube.Account(p.Request.Namespace, account)
}

// permissions are those of the account that the steps run as, against what the Role
// of mlenv install gives.
func (p *probe) permissions(ctx context.Context) []Check {
	needed, looking := install.Rules()
	user := p.user(p.ServiceAccount)
	if p.ServiceAccount == "" {
		user = kube.WhoAsks(ctx, p.Clients.Kube)
	}
	return []Check{
		p.rights(ctx, neededCheck, user, needed, Blocked),
		p.rights(ctx, lookingCheck, user, looking, Warning),
	}
}

// rights checks those of rules that the request has a use for.
func (p *probe) rights(ctx context.Context, name, user string, rules []rbacv1.PolicyRule, lacking Verdict) Check {
	rights := p.useful(rules)
	missing := make([]right, len(rights))
	errs := make([]error, len(rights))
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i, r := range rights {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			missing[i] = right{group: r.group, resource: r.resource}
			for _, verb := range r.verbs {
				resource, sub, _ := strings.Cut(r.resource, "/")
				allowed, err := p.may(ctx, p.ServiceAccount, authorizationv1.ResourceAttributes{Verb: verb, Group: r.group, Resource: resource, Subresource: sub})
				if err != nil {
					errs[i] = err
					return
				}
				if !allowed {
					missing[i].verbs = append(missing[i].verbs, verb)
				}
			}
		})
	}
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return unread(name, "what "+user+" may do", errs[i])
	}
	missing = slices.DeleteFunc(missing, func(r right) bool { return len(r.verbs) == 0 })
	if len(missing) == 0 {
		return Check{Name: name, Verdict: OK, Seen: fmt.Sprintf("%s has the %s that the Role of mlenv install gives", user, humanize.Count(len(rights), "right"))}
	}
	var texts, grants []string
	for _, r := range missing {
		texts = append(texts, r.String())
		grants = append(grants, kube.Grant(user, strings.Join(r.verbs, ","), r.resource, r.group, p.Request.Namespace))
	}
	check := Check{
		Name: name, Verdict: lacking, Seen: fmt.Sprintf("%s may not %s in namespace %s", user, strings.Join(texts, "; "), p.Request.Namespace),
		Fix: strings.Join(grants, "\n"),
	}
	if lacking == Blocked {
		check.Reason = fail.PermissionDenied
	}
	if len(missing) > fewRights {
		check.Fix = fmt.Sprintf("mlenv install clusters/%s.yaml -n %s --steps-image=IMAGE", p.file.Cluster.Name, p.Request.Namespace)
		if p.ServiceAccount != "" && p.ServiceAccount != install.DefaultServiceAccount {
			check.Fix += " --service-account=" + p.ServiceAccount
		}
	}
	return check
}

// useful are the rights to what the cluster has and the request wants.
func (p *probe) useful(rules []rbacv1.PolicyRule) []right {
	unused := map[string]bool{buildGroup: !p.building, imageGroup: !p.building, routeGroup: !p.Request.Routes, attachmentGroup: !p.rdma}
	var rights []right
	for _, rule := range rules {
		group := rule.APIGroups[0]
		// Kubernetes' own groups are in every cluster; those of others have a dot.
		foreign := strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
		if unused[group] || foreign && !p.groups[group] {
			continue
		}
		for _, resource := range rule.Resources {
			rights = append(rights, right{group: group, resource: resource, verbs: rule.Verbs})
		}
	}
	return rights
}
