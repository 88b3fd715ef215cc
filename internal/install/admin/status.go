package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// State is how far an item is.
type State string

// The states. NotApplied is that of what is optional.
const (
	InPlace    State = "in place"
	Missing    State = "missing"
	Differs    State = "differs"
	Unknown    State = "unknown"
	NotApplied State = "not applied"
	RollingOut State = "rolling out"
)

// Row is one line of the status.
type Row struct {
	What   string `json:"what"`
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Status is what is in place.
type Status struct {
	Rows     []Row    `json:"rows"`
	Warnings []string `json:"warnings,omitempty"`
	Pool     *Pool    `json:"pool,omitempty"`
	// configs are our MachineConfigs that exist.
	configs []string
}

// complete is true where nothing is missing and nothing is wrong. What may not be
// read is not counted.
func (s Status) complete() bool {
	return len(s.Warnings) == 0 && !slices.ContainsFunc(s.Rows, func(r Row) bool { return r.State == Missing || r.State == Differs })
}

// rolling is true where nodes do not yet have what was applied.
func (s Status) rolling() bool {
	return s.Pool != nil && (s.Pool.State != poolUpdated || !s.Pool.has(s.configs))
}

// Look finds out what of the request's items is in place. What may not be read is
// Unknown, and no error.
func Look(ctx context.Context, c Clients, r Request) (Status, error) {
	if err := checkNamespace(ctx, c.Kube, r.Namespace); err != nil && !apierrors.IsForbidden(err) {
		return Status{}, err
	}
	looker := &looker{c: c, r: r}
	planner := &planner{Request: r}
	looker.objects(ctx, planner.objects(r.serviceAccount())...)
	if r.rdma() {
		if scc := r.scc(); scc != "" {
			looker.constraint(ctx, planner, scc)
			looker.objects(ctx, planner.objects(useRole(scc), r.useBinding(scc))...)
			looker.canUse(ctx, scc)
		}
		looker.attachments(ctx)
		looker.machineConfigs(ctx)
	}
	looker.observer(ctx)
	return looker.status, planner.err
}

// looker fills a status.
type looker struct {
	c      Clients
	r      Request
	status Status
}

func (l *looker) row(what string, state State, detail string, args ...any) {
	l.status.Rows = append(l.status.Rows, Row{What: what, State: state, Detail: fmt.Sprintf(detail, args...)})
}

// failed is a row for an answer that was not got.
func (l *looker) failed(what string, err error) { l.row(what, Unknown, "%v", err) }

func (l *looker) objects(ctx context.Context, wanted ...*unstructured.Unstructured) {
	for _, want := range wanted {
		live, err := install.Live(ctx, l.c.Objects, want)
		switch {
		case err != nil:
			l.failed(install.Title(want), err)
		case live == nil:
			l.row(install.Title(want), Missing, "mlenv admin --apply makes it")
		case want.GetKind() == "RoleBinding" && hasSubjects(live, want):
			l.row(install.Title(want), InPlace, "")
		case want.GetKind() == "RoleBinding":
			l.row(install.Title(want), Differs, "service account %s is not among its subjects", l.r.ServiceAccount)
		case difference(live, want) != "":
			l.row(install.Title(want), Differs, "%s is not as mlenv admin makes it", difference(live, want))
		default:
			l.row(install.Title(want), InPlace, "")
		}
	}
}

func (l *looker) constraint(ctx context.Context, planner *planner, scc string) {
	if scc == OwnSCC {
		l.objects(ctx, planner.objects(leastSCC())...)
		return
	}
	what := "securitycontextconstraints/" + scc
	live, err := getSCC(ctx, l.c.Objects, scc)
	switch {
	case err != nil:
		l.failed(what, err)
	case live == nil:
		l.row(what, Missing, "the cluster has none of that name")
	default:
		if problems := sccProblems(live, l.r.Cluster.Security); len(problems) > 0 {
			l.row(what, Differs, "%s", strings.Join(problems, "; "))
			return
		}
		l.row(what, InPlace, "")
	}
}

// canUse asks the API server itself, whatever gives the right.
func (l *looker) canUse(ctx context.Context, scc string) {
	what := fmt.Sprintf("%s may use %s", kube.Account(l.r.Namespace, l.r.ServiceAccount), scc)
	allowed, why, err := kube.AccountMay(ctx, l.c.Kube, l.r.Namespace, l.r.ServiceAccount,
		authorizationv1.ResourceAttributes{Verb: "use", Group: sccGroup, Resource: sccResource, Name: scc})
	switch {
	case err != nil:
		l.failed(what, err)
	case allowed:
		l.row(what, InPlace, "%s", why)
	default:
		l.row(what, Missing, "oc adm policy add-scc-to-user %s -z %s -n %s", scc, l.r.ServiceAccount, l.r.Namespace)
	}
}

func (l *looker) attachments(ctx context.Context) {
	names := l.r.Cluster.Network.RDMA.Attachments
	if l.r.CopyAttachments {
		names = (&planner{Request: l.r}).copied()
	}
	var definitions []attachment.Definition
	for _, full := range names {
		namespace, name, _ := strings.Cut(full, "/")
		what := "network-attachment-definition/" + full
		object, err := l.c.Objects.Resource(attachment.Resource()).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			l.row(what, Missing, "oc get network-attachment-definitions -A")
			continue
		} else if err != nil {
			l.failed(what, kube.Problem(err))
			continue
		}
		definition := attachment.Read(object)
		definitions = append(definitions, definition)
		facts := []string{cmp.Or(definition.Resource, "no resource")}
		for _, r := range definition.Ranges {
			facts = append(facts, r.String())
		}
		if definition.Problem != "" {
			facts = append(facts, definition.Problem)
		}
		l.row(what, InPlace, "%s", strings.Join(facts, ", "))
	}
	l.status.Warnings = l.r.warnings(definitions)
}

// machineConfigs goes by the configurations that are rendered for the nodes: a
// MachineConfig that exists may not have reached them, and another may do the same.
func (l *looker) machineConfigs(ctx context.Context) {
	pool, err := getPool(ctx, l.c.Objects, l.r.Pool)
	if err != nil {
		l.failed("machineconfigpool/"+l.r.Pool, err)
		return
	}
	l.status.Pool = &pool
	for _, want := range []struct {
		object *unstructured.Unstructured
		in     func(rendered *unstructured.Unstructured) bool
		needed string
	}{
		{memlockConfig(pool.Name), hasMemlock, "needed where pods have no effective IPC_LOCK"},
		{iommuConfig(pool.Name), hasPassthrough, "needed where the nodes' IOMMU translates: mlenv rdma shows it"},
	} {
		l.machineConfig(ctx, pool, want.object, want.in, want.needed)
	}
}

func (l *looker) machineConfig(ctx context.Context, pool Pool, want *unstructured.Unstructured, in func(*unstructured.Unstructured) bool, needed string) {
	what := install.Title(want)
	live, err := install.Live(ctx, l.c.Objects, want)
	if err != nil {
		l.failed(what, err)
		return
	}
	if live != nil {
		l.status.configs = append(l.status.configs, want.GetName())
	}
	has := map[string]bool{}
	for _, name := range []string{pool.Current, pool.Target} {
		rendered, err := install.Live(ctx, l.c.Objects, machineConfig(name, pool.Name, nil))
		if err != nil {
			l.failed(what, err)
			return
		}
		has[name] = rendered != nil && in(rendered)
	}
	switch {
	case has[pool.Current] && live != nil:
		l.row(what, InPlace, "on all nodes of pool %s", pool.Name)
	case has[pool.Current]:
		l.row(what, InPlace, "on all nodes of pool %s, by another MachineConfig", pool.Name)
	case has[pool.Target]:
		l.row(what, RollingOut, "%d of %d nodes of pool %s have it", pool.Updated, pool.Machines, pool.Name)
	case live != nil:
		l.row(what, RollingOut, "it exists, and is not in the configuration of pool %s yet", pool.Name)
	default:
		l.row(what, NotApplied, "%s", needed)
	}
}

func hasPassthrough(rendered *unstructured.Unstructured) bool {
	arguments, _, _ := unstructured.NestedStringSlice(rendered.Object, "spec", "kernelArguments")
	return slices.Contains(arguments, iommuArgument)
}

func hasMemlock(rendered *unstructured.Unstructured) bool {
	files, _, _ := unstructured.NestedSlice(rendered.Object, "spec", "config", "storage", "files")
	return slices.ContainsFunc(files, func(file any) bool {
		fields, _ := file.(map[string]any)
		return fields["path"] == memlockFile
	})
}

// observer looks for what mlenv install --admin makes.
func (l *looker) observer(ctx context.Context) {
	binding := &unstructured.Unstructured{}
	binding.SetAPIVersion("rbac.authorization.k8s.io/v1")
	binding.SetKind("ClusterRoleBinding")
	binding.SetName(install.ObserverBinding(l.r.Namespace))
	live, err := install.Live(ctx, l.c.Objects, binding)
	switch {
	case err != nil:
		l.failed(install.Title(binding), err)
	case live == nil:
		l.row(install.Title(binding), NotApplied, "optional: mlenv install --admin")
	default:
		l.row(install.Title(binding), InPlace, "")
	}
}
