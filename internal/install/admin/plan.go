package admin

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Item is one part of the set-up. docs/rdma.md has the reason and the cost of each.
type Item struct {
	// Name is one word for programs.
	Name string `json:"name"`
	What string `json:"what"`
	// Commands do the same by hand.
	Commands []string `json:"commands,omitempty"`
	// Objects are in the order in which --apply applies them.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	Applied bool                         `json:"applied"`
	Note    string                       `json:"note,omitempty"`
	// Reboots names the pool whose nodes reboot.
	Reboots string `json:"reboots,omitempty"`
}

// Plan is the whole set-up.
type Plan struct {
	Cluster        string `json:"cluster"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Form is how pods get their devices: "SR-IOV", "host devices" or "none".
	Form     string   `json:"form"`
	Items    []Item   `json:"items"`
	Warnings []string `json:"warnings,omitempty"`
}

func (p Plan) objects() []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for _, item := range p.Items {
		if item.Applied {
			objects = append(objects, item.Objects...)
		}
	}
	return objects
}

const noForm = "none"

// NewPlan plans a valid request. copies are the attachments to create.
func NewPlan(r Request, copies []*unstructured.Unstructured) Plan {
	p := Plan{Cluster: r.Cluster.Cluster.Name, Namespace: r.Namespace, ServiceAccount: r.ServiceAccount, Form: noForm}
	p.Items = append(p.Items, r.accountItem())
	if r.rdma() {
		p.Form = "host devices"
		if r.Cluster.Network.RDMA.SRIOV() {
			p.Form = "SR-IOV"
		}
		p.Items = append(p.Items, r.sccItem())
		if r.scc() != "" {
			p.Items = append(p.Items, r.useItem())
		}
		if len(r.Cluster.Network.RDMA.Attachments) > 0 {
			p.Items = append(p.Items, r.attachmentsItem(copies))
		}
		p.Items = append(p.Items, r.rebootItem("memlock", memlockName(r.Pool)+": no limit of locked memory in containers"),
			r.rebootItem("iommu", iommuName(r.Pool)+": "+iommuArgument+" on the kernel's command line"))
	}
	p.Items = append(p.Items, Item{
		Name: "observer", What: "optional: read nodes, pods and storage classes of the whole cluster in preflight",
		Commands: []string{fmt.Sprintf("mlenv install %s -n %s --steps-image=IMAGE --admin", r.ClusterFile, r.Namespace)},
	})
	return p
}

func (r Request) accountItem() Item {
	item := Item{
		Name: "service-account", What: "service account " + r.ServiceAccount, Objects: r.objects("service-account"), Applied: true,
		Commands: []string{fmt.Sprintf("oc create serviceaccount %s -n %s", r.ServiceAccount, r.Namespace)},
	}
	if set := r.Cluster.Security.ServiceAccount; set != r.ServiceAccount {
		item.Note = fmt.Sprintf("the cluster file names %s; set security.service_account: %s in it", set, r.ServiceAccount)
	}
	return item
}

func (r Request) sccItem() Item {
	switch scc := r.scc(); scc {
	case "":
		return Item{
			Name: "scc", What: "no SecurityContextConstraints: with security.ipc_lock false restricted-v2 admits the pods",
			Note: fmt.Sprintf("then registering memory needs MachineConfig %s; with security.ipc_lock: true this command creates %s instead", memlockName(r.Pool), OwnSCC),
		}
	case OwnSCC:
		return Item{Name: "scc", What: "SecurityContextConstraints " + scc, Objects: r.objects("scc"), Applied: true}
	case "privileged":
		return Item{
			Name: "scc", What: "SecurityContextConstraints privileged, which exists",
			Note: "users who can start a pod under " + r.ServiceAccount + " are root on its node: bind it only in a namespace of trusted users",
		}
	default:
		return Item{Name: "scc", What: "SecurityContextConstraints " + scc + ", which must exist", Note: "--apply checks that it allows IPC_LOCK and root"}
	}
}

func (r Request) useItem() Item {
	return Item{
		Name:     "scc-use",
		What:     fmt.Sprintf("the right to use %s, only for service account %s in namespace %s", r.scc(), r.ServiceAccount, r.Namespace),
		Commands: []string{fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", r.scc(), r.ServiceAccount, r.Namespace)},
		Objects:  r.objects("scc-use"), Applied: true,
	}
}

func (r Request) attachmentsItem(copies []*unstructured.Unstructured) Item {
	item := Item{Name: "attachments", What: "network attachments " + strings.Join(r.Cluster.Network.RDMA.Attachments, ", ")}
	switch foreign := r.foreign(); {
	case r.CopyAttachments:
		item.What = "copies of the network attachments in namespace " + r.Namespace
		item.Objects, item.Applied = copies, true
		item.Note = "nothing updates the copies; list them in network.rdma.attachments of the cluster file: " + strings.Join(r.copied(), ", ")
	case len(foreign) > 0:
		item.Note = fmt.Sprintf("pods of %s cannot use %s, unless that namespace is global for Multus; --attachments=copy copies them", r.Namespace, strings.Join(foreign, ", "))
	default:
		item.Note = fmt.Sprintf("nothing to do: namespace %s is global for Multus on OpenShift; on other clusters --attachments=copy copies them", globalNamespace)
	}
	return item
}

func (r Request) copied() []string {
	var names []string
	for _, full := range r.Cluster.Network.RDMA.Attachments {
		_, name, _ := strings.Cut(full, "/")
		names = append(names, r.Namespace+"/"+name)
	}
	return names
}

// rebootItem is a MachineConfig: applying it reboots the nodes of the pool.
func (r Request) rebootItem(name, what string) Item {
	item := Item{Name: name, What: "MachineConfig " + what, Objects: r.objects(name), Reboots: r.Pool, Applied: r.Reboot}
	item.Note = fmt.Sprintf("EVERY NODE OF POOL %s REBOOTS, one after the other", r.Pool)
	if !item.Applied {
		item.Note += fmt.Sprintf("; only --apply --reboot-pool=%s applies it", r.Pool)
	}
	return item
}

// Print writes the plan as text. Commands start at the beginning of a line, so that they can be pasted.
func (p Plan) Print(w io.Writer) error {
	fmt.Fprintf(w, "Cluster %s, namespace %s: the one-time set-up for pods of service account %s.\n", p.Cluster, p.Namespace, p.ServiceAccount)
	if p.Form == noForm {
		fmt.Fprintln(w, "The cluster file has network.rdma.enabled false: mode tcp needs no constraint, attachment or MachineConfig.")
	} else {
		fmt.Fprintf(w, "The pods use RDMA by %s. docs/rdma.md has the reason and the cost of each item.\n", p.Form)
	}
	for i, item := range p.Items {
		fmt.Fprintf(w, "\n%d. %s\n", i+1, item.What)
		if item.Note != "" {
			fmt.Fprintf(w, "   %s\n", item.Note)
		}
		for _, command := range item.Commands {
			fmt.Fprintf(w, "\n%s\n", command)
		}
		if len(item.Commands) > 0 || len(item.Objects) == 0 {
			continue
		}
		fmt.Fprintln(w, "\noc apply --server-side -f - <<'EOF'")
		if err := step.WriteObjects(w, item.Objects); err != nil {
			return err
		}
		fmt.Fprintln(w, "EOF")
	}
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "\nwarning: %s\n", warning)
	}
	return nil
}

// printYAML writes the objects that --apply applies. It comments out what would reboot nodes without
// --reboot-pool, because users pipe the output into oc apply.
func (p Plan) printYAML(w io.Writer) error {
	for _, item := range p.Items {
		if len(item.Objects) == 0 {
			continue
		}
		var text strings.Builder
		if err := step.WriteObjects(&text, item.Objects); err != nil {
			return err
		}
		fmt.Fprintf(w, "# %s\n", item.What)
		if item.Applied {
			fmt.Fprint(w, text.String())
			continue
		}
		fmt.Fprintf(w, "# Omitted, because every node of pool %s would reboot. --reboot-pool=%s includes it.\n", item.Reboots, item.Reboots)
		for line := range strings.Lines(text.String()) {
			fmt.Fprint(w, "# ", line)
		}
	}
	return nil
}
