package admin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/attachment"
)

// State is the state of an item.
type State string

// The states. NotApplied is the state of a missing item that is optional.
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

// Status lists what is in place.
type Status struct {
	Rows     []Row    `json:"rows"`
	Warnings []string `json:"warnings,omitempty"`
	Pool     *Pool    `json:"pool,omitempty"`
	// configs are this project's MachineConfigs that exist.
	configs []string
}

// complete reports whether nothing is missing or wrong. Rows that could not be read do not count.
func (s Status) complete() bool {
	return len(s.Warnings) == 0 && !slices.ContainsFunc(s.Rows, func(r Row) bool { return r.State == Missing || r.State == Differs })
}

func (s Status) rolling() bool {
	return s.Pool != nil && (s.Pool.State != poolUpdated || !s.Pool.has(s.configs))
}

func (s Status) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range s.Rows {
		fmt.Fprintf(table, "%s\t%s\t%s\n", row.State, row.What, row.Detail)
	}
	_ = table.Flush() // as for every line of text output
	printWarnings(w, s.Warnings)
}

// Look reads which of the request's items are in place. An item that cannot be read is Unknown, which is no error.
func Look(ctx context.Context, c *kube.Clients, r Request) (Status, error) {
	if err := checkNamespace(ctx, c.Kube, r.Namespace); err != nil && !apierrors.IsForbidden(err) {
		return Status{}, err
	}
	s := &survey{Request: r, clients: c}
	s.objects(ctx, r.objects("service-account"))
	if r.rdma() {
		s.constraint(ctx, r.scc())
		s.attachments(ctx)
		s.machineConfigs(ctx)
	}
	binding := named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", install.ObserverBinding(r.Namespace))
	s.object(ctx, install.Title(binding), binding, Row{State: NotApplied, Detail: "optional: mlenv install --admin"}, accept)
	return s.status, nil
}

type survey struct {
	Request
	clients *kube.Clients
	status  Status
}

func (s *survey) row(what string, state State, detail string) {
	s.status.Rows = append(s.status.Rows, Row{What: what, State: state, Detail: detail})
}

// object adds the row of an object: missing if the cluster does not have it, judge's answer if it does.
func (s *survey) object(ctx context.Context, what string, want *unstructured.Unstructured, missing Row, judge func(live *unstructured.Unstructured) (State, string)) {
	live, err := install.Live(ctx, s.clients.Objects, want)
	switch {
	case err != nil:
		s.row(what, Unknown, err.Error())
	case live == nil:
		s.row(what, missing.State, missing.Detail)
	default:
		state, detail := judge(live)
		s.row(what, state, detail)
	}
}

func accept(*unstructured.Unstructured) (State, string) { return InPlace, "" }

func (s *survey) objects(ctx context.Context, wanted []*unstructured.Unstructured) {
	for _, want := range wanted {
		s.object(ctx, install.Title(want), want, Row{State: Missing, Detail: "mlenv admin --apply creates it"}, func(live *unstructured.Unstructured) (State, string) {
			if want.GetKind() == "RoleBinding" {
				if len(missingSubjects(live, want)) > 0 {
					return Differs, fmt.Sprintf("service account %s is not among its subjects", s.ServiceAccount)
				}
				return InPlace, ""
			}
			if found := difference(live.Object, want.Object, ""); found != "" {
				return Differs, strings.TrimPrefix(found, ".") + " is not as mlenv admin creates it"
			}
			return InPlace, ""
		})
	}
}

// constraint adds the rows of the constraint and of the right to use it. The API server answers whether the
// account may use it, whichever binding gives the right.
func (s *survey) constraint(ctx context.Context, scc string) {
	switch scc {
	case "":
		return
	case OwnSCC:
		s.objects(ctx, s.Request.objects("scc"))
	default:
		s.object(ctx, sccResource+"/"+scc, sccNamed(scc), Row{State: Missing, Detail: "the cluster has no constraint of that name"}, func(live *unstructured.Unstructured) (State, string) {
			if problems := sccProblems(live, s.Cluster.Security); len(problems) > 0 {
				return Differs, strings.Join(problems, "; ")
			}
			return InPlace, ""
		})
	}
	s.objects(ctx, s.Request.objects("scc-use"))
	what := fmt.Sprintf("%s may use %s", kube.Account(s.Namespace, s.ServiceAccount), scc)
	allowed, why, err := kube.AccountMay(ctx, s.clients.Kube, s.Namespace, s.ServiceAccount,
		authorizationv1.ResourceAttributes{Verb: "use", Group: sccGroup, Resource: sccResource, Name: scc})
	switch {
	case err != nil:
		s.row(what, Unknown, err.Error())
	case allowed:
		s.row(what, InPlace, why)
	default:
		s.row(what, Missing, fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", scc, s.ServiceAccount, s.Namespace))
	}
}

func (s *survey) attachments(ctx context.Context) {
	names := s.Cluster.Network.RDMA.Attachments
	if s.CopyAttachments {
		names = s.copied()
	}
	var definitions []attachment.Definition
	for _, full := range names {
		s.object(ctx, "network-attachment-definition/"+full, attachmentNamed(full), Row{State: Missing, Detail: "oc get network-attachment-definitions -A"}, func(live *unstructured.Unstructured) (State, string) {
			definition := attachment.Read(live)
			definitions = append(definitions, definition)
			facts := []string{cmp.Or(definition.Resource, "no resource")}
			for _, r := range definition.Ranges {
				facts = append(facts, r.String())
			}
			if definition.Problem != "" {
				facts = append(facts, definition.Problem)
			}
			return InPlace, strings.Join(facts, ", ")
		})
	}
	s.status.Warnings = s.warnings(definitions)
}

// machineConfigs compares with the configurations that the operator rendered for the nodes, because an existing
// MachineConfig may not have reached them, and another one may do the same.
func (s *survey) machineConfigs(ctx context.Context) {
	pool, err := getPool(ctx, s.clients.Objects, s.Pool)
	if err != nil {
		s.row("machineconfigpool/"+s.Pool, Unknown, err.Error())
		return
	}
	s.status.Pool = &pool
	s.machineConfig(ctx, pool, s.Request.objects("memlock")[0], hasMemlock, "needed if pods have no effective IPC_LOCK")
	s.machineConfig(ctx, pool, s.Request.objects("iommu")[0], hasPassthrough, "needed if the nodes' IOMMU translates, which mlenv rdma shows")
}

func (s *survey) machineConfig(ctx context.Context, pool Pool, want *unstructured.Unstructured, in func(*unstructured.Unstructured) bool, needed string) {
	what := install.Title(want)
	has := map[string]bool{}
	for _, name := range []string{want.GetName(), pool.Current, pool.Target} {
		live, err := install.Live(ctx, s.clients.Objects, named(want.GetAPIVersion(), want.GetKind(), "", name))
		if err != nil {
			s.row(what, Unknown, err.Error())
			return
		}
		has[name] = live != nil && (name == want.GetName() || in(live))
	}
	exists := has[want.GetName()]
	if exists {
		s.status.configs = append(s.status.configs, want.GetName())
	}
	switch {
	case has[pool.Current] && exists:
		s.row(what, InPlace, "on all nodes of pool "+pool.Name)
	case has[pool.Current]:
		s.row(what, InPlace, fmt.Sprintf("on all nodes of pool %s, by another MachineConfig", pool.Name))
	case has[pool.Target]:
		s.row(what, RollingOut, fmt.Sprintf("%d of %d nodes of pool %s have it", pool.Updated, pool.Machines, pool.Name))
	case exists:
		s.row(what, RollingOut, fmt.Sprintf("it exists, but the configuration of pool %s does not include it yet", pool.Name))
	default:
		s.row(what, NotApplied, needed)
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
