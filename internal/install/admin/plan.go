// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// item is one part of the set-up.
type item struct {
	what string
	// why is what the item is for, without what fails if it is missing, cost what it costs. Each may be empty.
	why, without, cost string
	// check is the command that shows whether the item is in place.
	check string
	notes []string
	// manifests is YAML, "" if there is nothing to apply.
	manifests string
	// disabled manifests are printed as comments.
	disabled bool
}

// plan is the whole set-up.
type plan struct {
	Request
	items []item
}

// newPlan plans a valid request. copies are the attachments to create, warnings describe their originals.
func newPlan(r Request, copies []*unstructured.Unstructured, warnings []string) (plan, error) {
	p := plan{Request: r, items: []item{r.accountItem()}}
	if r.wantsRDMA() {
		p.items = append(p.items, r.sccItem())
		if r.sccName() != "" {
			p.items = append(p.items, r.useItem())
		}
		if len(r.Cluster.Network.RDMA.Attachments) > 0 {
			attachments, err := r.attachmentsItem(copies, warnings)
			if err != nil {
				return plan{}, err
			}
			p.items = append(p.items, attachments)
		}
		p.items = append(p.items, r.memlockItem(), r.iommuItem())
	}
	p.items = append(p.items, r.observerItem())
	return p, nil
}

func (r Request) accountItem() item {
	i := item{
		what: "service account " + r.ServiceAccount, why: "the pods run under it, so it receives the rights instead of all pods of the namespace",
		without: "mlenv install creates it", cost: "nothing: no rights at the API server, and no token in the pods",
		check:     fmt.Sprintf("oc get serviceaccount %s -n %s", r.ServiceAccount, r.Namespace),
		manifests: r.manifests("service-account"),
	}
	if set := r.Cluster.Security.ServiceAccount; set != r.ServiceAccount {
		i.notes = []string{fmt.Sprintf("The cluster file names %s. Set security.service_account: %s in it.", set, r.ServiceAccount)}
	}
	return i
}

func (r Request) sccItem() item {
	i := item{
		what: "SecurityContextConstraints " + r.sccName(), why: "registering memory needs IPC_LOCK, which is effective for root alone",
		without: "capability may not be added", check: "oc describe scc " + r.sccName(),
	}
	switch r.sccName() {
	case "":
		return item{what: "no SecurityContextConstraints: with security.ipc_lock false restricted-v2 admits the pods", notes: []string{
			fmt.Sprintf("Registering memory then needs MachineConfig %s, or a constraint that allows IPC_LOCK:", memlockName(r.Pool)),
			fmt.Sprintf("--scc=%s prints one. The pods ask for IPC_LOCK if their account may use such a constraint.", OwnSCC),
		}}
	case OwnSCC:
		i.cost = "root in the container, and as much locked memory as the pod's limit"
		i.manifests = r.manifests("scc")
	case cluster.PrivilegedSCC:
		i.what += ", which exists"
		i.why = "pods that use devices of the host need it"
		i.cost = fmt.Sprintf("users who can start a pod under %s are root on its node", r.ServiceAccount)
		i.notes = []string{"Allow it only in a namespace of trusted users."}
	default:
		i.what += ", which must exist"
		i.notes = []string{"It must allow " + strings.Join(r.needs(), ", ") + " and any user, which the check shows."}
	}
	return i
}

// needs returns the names of what a constraint of the cluster must allow.
func (r Request) needs() []string {
	needs := r.Cluster.Security.AddedCapabilities()
	if r.Cluster.Security.RequiresPrivilegedSCC {
		needs = append(needs, "privileged containers")
	}
	if len(needs) == 0 {
		return []string{"IPC_LOCK"}
	}
	return needs
}

func (r Request) useItem() item {
	return item{
		what:    fmt.Sprintf("the right to use %s, only for service account %s in namespace %s", r.sccName(), r.ServiceAccount, r.Namespace),
		why:     "a constraint admits a pod only if its service account may use it",
		without: "unable to validate against any security context constraint",
		cost:    "anyone who may create pods in the namespace can use the account",
		check: fmt.Sprintf("oc auth can-i use securitycontextconstraints/%s --as=system:serviceaccount:%s:%s -n %s",
			r.sccName(), r.Namespace, r.ServiceAccount, r.Namespace),
		manifests: r.manifests("scc-use"),
	}
}

func (r Request) attachmentsItem(copies []*unstructured.Unstructured, warnings []string) (item, error) {
	i := item{
		what:    "network attachments " + strings.Join(r.Cluster.Network.RDMA.AttachmentsIn(r.Namespace), ", "),
		why:     "each gives a pod a NIC with an address",
		without: "Bootstrap : no socket interface found", check: "oc get network-attachment-definitions -A",
	}
	switch foreign := r.foreign(); {
	case r.CopyAttachments:
		var text strings.Builder
		if err := command.WriteObjects(&text, copies); err != nil {
			return item{}, err
		}
		i.what, i.manifests = "copies of the network attachments in namespace "+r.Namespace, strings.TrimPrefix(text.String(), separator)
		i.cost = "nothing updates the copies"
		if copied := r.copied(); !slices.Equal(copied, r.Cluster.Network.RDMA.AttachmentsIn(r.Namespace)) {
			i.notes = append(i.notes, "List them in network.rdma.attachments of the cluster file: "+strings.Join(copied, ", "))
		}
	case len(foreign) > 0:
		i.notes = append(i.notes, fmt.Sprintf("Pods of %s cannot use %s, unless that namespace is global for Multus.",
			r.Namespace, strings.Join(foreign, ", ")), "--attachments=copy copies them.")
	case !slices.Equal(r.originals(), r.Cluster.Network.RDMA.AttachmentsIn(r.Namespace)):
		i.notes = append(i.notes, fmt.Sprintf("They must exist in namespace %s: --attachments=copy copies those of namespace %s.",
			r.Namespace, globalNamespace))
	default:
		i.notes = append(i.notes, fmt.Sprintf("Nothing to do: namespace %s is global for Multus on OpenShift.", globalNamespace),
			"On other clusters --attachments=copy copies them.")
	}
	for _, warning := range warnings {
		i.notes = append(i.notes, "WARNING: "+warning)
	}
	return i, nil
}

func (r Request) copied() []string {
	var names []string
	for _, full := range r.Cluster.Network.RDMA.AttachmentsIn(r.Namespace) {
		_, name, _ := strings.Cut(full, "/")
		names = append(names, r.Namespace+"/"+name)
	}
	return names
}

func (r Request) memlockItem() item {
	return r.rebooting(item{
		what: "MachineConfig " + memlockName(r.Pool) + ": no limit of locked memory in containers",
		why:  "without an effective IPC_LOCK the nodes limit how much memory can be registered", without: "ENOMEM from ibv_reg_mr beyond 8 MiB",
		cost:  "every container of the pool may lock memory",
		check: "mlenv rdma, in an environment that is up", manifests: r.manifests("memlock"),
	})
}

func (r Request) iommuItem() item {
	return r.rebooting(item{
		what: "MachineConfig " + iommuName(r.Pool) + ": " + iommuArgument + " on the kernel's command line",
		why:  "a translating IOMMU keeps a NIC from a GPU's memory", without: "IBV_WC_LOC_PROT_ERR, vendor_err 81",
		cost:  "the IOMMU no longer protects the host's memory from its devices",
		check: "oc debug node/NODE -- chroot /host cat /proc/cmdline", manifests: r.manifests("iommu"),
	})
}

// rebooting completes the item of a MachineConfig: applying it reboots the nodes of the pool.
func (r Request) rebooting(i item) item {
	i.notes = []string{
		fmt.Sprintf("EVERY NODE OF POOL %s REBOOTS, one after the other, about ten minutes each. Follow it:", r.Pool),
		fmt.Sprintf("oc wait machineconfigpool/%s --for=condition=Updating --timeout=5m   # times out if no node needs the change", r.Pool),
		fmt.Sprintf("oc wait machineconfigpool/%s --for=condition=Updated --timeout=2h", r.Pool),
	}
	if !r.Reboot {
		i.disabled = true
		i.notes = append(i.notes, fmt.Sprintf("It is a comment here until --reboot-pool=%s includes it.", r.Pool))
	}
	return i
}

func (r Request) observerItem() item {
	return item{
		what: "optional: preflight reads nodes, pods and storage classes of the whole cluster", without: `those answers are "unknown"`,
		notes: []string{fmt.Sprintf("mlenv install %s -n %s --admin", r.ClusterFile, r.Namespace)},
	}
}

// print writes the manifests with comments. They can be piped into oc apply.
func (p plan) print(w io.Writer) {
	comment := func(format string, args ...any) { fmt.Fprintln(w, "# "+oneLine(fmt.Sprintf(format, args...))) }
	comment("Cluster %s, namespace %s: the one-time set-up for pods of service account %s.",
		p.Cluster.Cluster.Name, p.Namespace, p.ServiceAccount)
	if p.wantsRDMA() {
		comment("The pods use RDMA by %s.", p.Cluster.Network.RDMA.DescribeForm())
	} else {
		comment("The cluster file has network.rdma.enabled false: mode tcp needs no constraint, attachment or MachineConfig.")
	}
	comment("Review it, and pipe it into oc apply -f -. The namespace must exist: oc new-project %s", p.Namespace)
	comment("Then see whether all is in place: mlenv preflight --cluster-file=%s -n %s", p.ClusterFile, p.Namespace)
	for number, i := range p.items {
		fmt.Fprintln(w)
		i.print(w, number+1)
	}
}

func (i item) print(w io.Writer, number int) {
	fmt.Fprintf(w, "# %d. %s\n", number, oneLine(i.what))
	for _, line := range []struct{ begin, text string }{
		{"Why: ", i.why}, {"Without it: ", i.without}, {"It costs: ", i.cost}, {"Check: ", i.check},
	} {
		if line.text != "" {
			fmt.Fprintf(w, "#    %s%s\n", line.begin, oneLine(line.text))
		}
	}
	for _, note := range i.notes {
		fmt.Fprintf(w, "#    %s\n", oneLine(note))
	}
	if i.manifests == "" {
		return
	}
	begin := ""
	if i.disabled {
		begin = "# "
	}
	for line := range strings.Lines(separator + i.manifests) {
		fmt.Fprint(w, begin, line)
	}
}

// oneLine keeps a text in its comment: names and annotations in the cluster are texts of others.
func oneLine(text string) string {
	const most = 4000
	return humanize.OneLine(text, most)
}
