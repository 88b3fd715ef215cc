package admin

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Item is one thing that is to be done.
type Item struct {
	// Name is one word for machines.
	Name string `json:"name"`
	What string `json:"what"`
	Why  string `json:"why"`
	// Without says what goes wrong without it.
	Without string `json:"without"`
	Cost    string `json:"cost"`
	// Commands do the same by hand.
	Commands []string `json:"commands,omitempty"`
	// Objects are applied in this order, where Applied says so.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// Applied is true where --apply does it; else Note says what does.
	Applied bool   `json:"applied"`
	Note    string `json:"note,omitempty"`
	// Reboots names the pool whose nodes reboot.
	Reboots string `json:"reboots,omitempty"`
}

// Plan is all of it.
type Plan struct {
	Cluster        string `json:"cluster"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Form is how pods get their devices: "SR-IOV", "host devices" or "none".
	Form  string `json:"form"`
	Items []Item `json:"items"`
	// SCCs compares the constraints that come into question.
	SCCs []Comparison `json:"sccs,omitempty"`
	// Warnings are what is wrong already.
	Warnings []string `json:"warnings,omitempty"`
}

// objects are those that --apply applies.
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

// NewPlan says what is to be done for a valid request. copies are the attachments to make.
func NewPlan(r Request, copies []*unstructured.Unstructured) (Plan, error) {
	p := Plan{Cluster: r.Cluster.Cluster.Name, Namespace: r.Namespace, ServiceAccount: r.ServiceAccount, Form: noForm}
	planner := &planner{Request: r}
	p.Items = append(p.Items, planner.accountItem())
	if r.rdma() {
		p.Form = "host devices"
		if r.Cluster.Network.RDMA.SRIOV() {
			p.Form = "SR-IOV"
		}
		p.SCCs = comparisons()
		p.Items = append(p.Items, planner.sccItem())
		if r.scc() != "" {
			p.Items = append(p.Items, planner.useItem())
		}
		if len(r.Cluster.Network.RDMA.Attachments) > 0 {
			p.Items = append(p.Items, planner.attachmentsItem(copies))
		}
		p.Items = append(p.Items, planner.memlockItem(), planner.iommuItem())
	}
	p.Items = append(p.Items, planner.observerItem())
	return p, planner.err
}

// planner makes the items. err is the first object that could not be rendered.
type planner struct {
	Request
	err error
}

func (p *planner) objects(typed ...runtime.Object) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for _, object := range typed {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil && p.err == nil {
			p.err = fmt.Errorf("rendering %T: %w", object, err)
		}
		objects = append(objects, &unstructured.Unstructured{Object: fields})
	}
	return objects
}

func (p *planner) accountItem() Item {
	item := Item{
		Name:     "service-account",
		What:     "service account " + p.ServiceAccount,
		Why:      "the pods run under it; what they may do is given to it, so that no other pod of the namespace has it",
		Without:  "mlenv makes one for each environment, which goes with it; rights given to its name stay",
		Cost:     "none: it has no rights in the API, and the pods are not given its token",
		Commands: []string{fmt.Sprintf("oc create serviceaccount %s -n %s", p.ServiceAccount, p.Namespace)},
		Objects:  p.objects(p.serviceAccount()),
		Applied:  true,
	}
	if set := p.Cluster.Security.ServiceAccount; set != p.ServiceAccount {
		item.Note = fmt.Sprintf("the cluster file has the pods run under %s: write security.service_account: %s into it", set, p.ServiceAccount)
	}
	return item
}

func (p *planner) sccItem() Item {
	scc := p.scc()
	item := Item{Name: "scc"}
	switch scc {
	case "":
		least := leastSCC()
		item.What = "SecurityContextConstraints: none, with this cluster file"
		item.Why = "security.ipc_lock is false: the pods ask for no capability, and restricted-v2, which everybody may use, admits them"
		item.Without = "locked memory is bounded by CRI-O's limit, 8 MiB: registering memory fails with ENOMEM unless the MachineConfig for it, below, is in place"
		item.Cost = "none"
		item.Note = fmt.Sprintf("instead of raising that limit for every container, write security.ipc_lock: true into the cluster file and run this again: it makes and binds %s then", least.Name)
	case OwnSCC:
		item.What = "SecurityContextConstraints " + scc
		item.Why = "locking memory without limit wants an effective IPC_LOCK, which only root has; no constraint of OpenShift's own but privileged allows it, anyuid neither"
		item.Without = "pods are refused: capability may not be added"
		item.Cost = "a pod can lock as much memory as its own limit allows; nobody may use it until it is bound"
		item.Objects, item.Applied = p.objects(leastSCC()), true
	case PrivilegedSCC:
		item.What = "SecurityContextConstraints " + scc + ", which is there"
		item.Why = "the pods use devices of the host, which only privileged containers can open"
		item.Without = "pods are refused: Privileged containers are not allowed"
		item.Cost = "who can start a pod under " + p.ServiceAccount + ", or get into one, is root on the node: bind it in a namespace of trusted people only"
		item.Note = "nothing is to be made"
		if p.Cluster.Network.RDMA.SRIOV() {
			item.Why = "the cluster file pins the pods to it"
			item.Note += fmt.Sprintf("; with SR-IOV, %s is enough: security.requires_privileged_scc: false and ipc_lock: true", OwnSCC)
		}
	default:
		item.What = "SecurityContextConstraints " + scc + ", which the cluster has"
		item.Why = "the cluster file, or --scc, names it; it must allow IPC_LOCK and root, which is looked at before anything is applied"
		item.Without = "pods are refused: capability may not be added"
		item.Cost = "what it allows beyond that: oc describe scc " + scc
		item.Note = "nothing is to be made"
	}
	return item
}

func (p *planner) useItem() Item {
	scc := p.scc()
	return Item{
		Name:     "scc-use",
		What:     fmt.Sprintf("the right to use %s, for service account %s in namespace %s alone", scc, p.ServiceAccount, p.Namespace),
		Why:      "a constraint admits a pod only where the pod's service account may use it",
		Without:  "pods are refused: unable to validate against any security context constraint",
		Cost:     fmt.Sprintf("everybody who may create pods in %s can do so under this account", p.Namespace),
		Commands: []string{fmt.Sprintf("oc adm policy add-scc-to-user %s -z %s -n %s", scc, p.ServiceAccount, p.Namespace)},
		Objects:  p.objects(useRole(scc), p.useBinding(scc)),
		Applied:  true,
	}
}

func (p *planner) attachmentsItem(copies []*unstructured.Unstructured) Item {
	item := Item{
		Name:    "attachments",
		What:    "network attachments " + strings.Join(p.Cluster.Network.RDMA.Attachments, ", "),
		Why:     "each gives a pod one NIC with an address",
		Without: "pods get no net1 and so on: NCCL says Bootstrap : no socket interface found",
		Cost:    "none",
	}
	if p.CopyAttachments {
		item.What = fmt.Sprintf("copies of the network attachments in namespace %s", p.Namespace)
		item.Why = "where Multus isolates namespaces, a pod can name attachments of its own namespace only"
		item.Cost = "nobody keeps the copies up to date: the SR-IOV Network Operator knows its originals only"
		item.Objects, item.Applied = copies, true
		item.Note = "the ranges are the originals', which whereabouts keeps one account of; the cluster file must name " + strings.Join(p.copied(), ", ")
		return item
	}
	if foreign := p.foreign(); len(foreign) > 0 {
		item.Note = fmt.Sprintf("pods of %s cannot name %s, unless Multus takes that namespace for a global one: --attachments=copy makes copies", p.Namespace, strings.Join(foreign, ", "))
		return item
	}
	item.Note = fmt.Sprintf("nothing is to be done: namespace %s is a global one for Multus on OpenShift, so pods of %s can name them; where it is not, --attachments=copy makes copies", globalNamespace, p.Namespace)
	return item
}

// copied are the attachments' names once they are copied.
func (p *planner) copied() []string {
	var names []string
	for _, full := range p.Cluster.Network.RDMA.Attachments {
		_, name, _ := strings.Cut(full, "/")
		names = append(names, p.Namespace+"/"+name)
	}
	return names
}

func (p *planner) memlockItem() Item {
	item := Item{
		Name:    "memlock",
		What:    fmt.Sprintf("MachineConfig %s: CRI-O does not bound locked memory", memlockName(p.Pool)),
		Why:     "registering memory with a device is refused beyond RLIMIT_MEMLOCK, unless IPC_LOCK is effective; the pods have IPC_LOCK, so this is for other pods, which run without it",
		Without: "nothing for these pods; without IPC_LOCK, ibv_reg_mr fails with ENOMEM beyond 8 MiB",
		Cost:    "every container on the pool's nodes may lock memory up to its memory limit; CRI-O's other default ulimits, if somebody set any, are replaced",
		Objects: []*unstructured.Unstructured{memlockConfig(p.Pool)},
	}
	if p.scc() == "" {
		item.Why = "registering memory with a device is refused beyond RLIMIT_MEMLOCK, unless IPC_LOCK is effective, which it is not with security.ipc_lock false"
		item.Without = "ibv_reg_mr fails with ENOMEM beyond 8 MiB: NCCL cannot use the devices"
	}
	return p.rebooting(item)
}

func (p *planner) iommuItem() Item {
	return p.rebooting(Item{
		Name:    "iommu",
		What:    fmt.Sprintf("MachineConfig %s: %s on the kernel's command line", iommuName(p.Pool), iommuArgument),
		Why:     "with a translating IOMMU a NIC reaches only memory that was mapped for it, and not a GPU's",
		Without: "transfers end with IBV_WC_LOC_PROT_ERR (vendor_err 81), and NCCL stays at a hundredth of the bandwidth; where the IOMMU is off, nothing",
		Cost:    "devices of the host are no longer kept from memory by the IOMMU; those given to virtual machines still are",
		Objects: []*unstructured.Unstructured{iommuConfig(p.Pool)},
	})
}

// rebooting marks an item that reboots the nodes of the pool.
func (p *planner) rebooting(item Item) Item {
	item.Reboots = p.Pool
	item.Cost += fmt.Sprintf("; every node of pool %s is drained and REBOOTS, one after the other", p.Pool)
	if item.Applied = p.Reboot; !item.Applied {
		item.Note = fmt.Sprintf("not applied, and not by --apply: --apply --reboot-pool=%s does, and the nodes of that pool reboot", p.Pool)
	}
	return item
}

func (p *planner) observerItem() Item {
	return Item{
		Name:     "observer",
		What:     "optional: let the steps look beyond the namespace: nodes, pods, storage classes",
		Why:      "preflight then says which nodes have free devices, and who holds the others",
		Without:  "those answers are unknown, which fails nothing",
		Cost:     "the pipeline's service account can read the specifications of all pods",
		Commands: []string{fmt.Sprintf("mlenv install %s -n %s --steps-image=IMAGE --admin", p.ClusterFile, p.Namespace)},
		Note:     "mlenv install does it, for it knows the pipeline's service account",
	}
}
