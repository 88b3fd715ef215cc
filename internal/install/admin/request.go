// Package admin is what an administrator does once so that a service account of a
// namespace can train over RDMA: said with reasons and costs, applied where asked
// for, and looked at afterwards.
package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// DefaultPool is the pool of nodes that MachineConfigs are printed for where none is named.
const DefaultPool = "worker"

// Request is what is to be prepared where.
type Request struct {
	Cluster cluster.File
	// ClusterFile is its name, for commands that can be pasted.
	ClusterFile string
	Namespace   string
	// ServiceAccount is the pods'.
	ServiceAccount string
	// SCC is named by a flag; empty is the cluster file's, or our own where pods need one.
	SCC string
	// CopyAttachments makes copies of the attachments in the namespace.
	CopyAttachments bool
	// Pool is the MachineConfigPool that MachineConfigs are for.
	Pool string
	// Reboot has the MachineConfigs applied, whereupon all nodes of the pool reboot.
	Reboot bool
}

// WithDefaults fills in what the cluster file says.
func (r Request) WithDefaults() Request {
	if r.Namespace == "" {
		r.Namespace = r.Cluster.Cluster.Namespace
	}
	if r.ServiceAccount == "" {
		r.ServiceAccount = r.Cluster.Security.ServiceAccount
	}
	if r.Pool == "" {
		r.Pool = DefaultPool
	}
	return r
}

// scc is the constraint that the pods are to be admitted by, "" where the one that
// everybody has is enough: pods that ask for no capability.
func (r Request) scc() string {
	security := r.Cluster.Security
	switch {
	case r.SCC != "":
		return r.SCC
	case !r.rdma():
		return ""
	case security.Pinned() != "":
		return security.Pinned()
	case len(security.Adds()) > 0:
		return OwnSCC
	}
	return ""
}

func (r Request) rdma() bool { return r.Cluster.Network.RDMA.Enabled }

// Validate says every mistake at once, as InvalidInput.
func (r Request) Validate() error {
	var problems []error
	mistake := func(what, value, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s %q: %s", what, value, fmt.Sprintf(format, args...)))
	}
	for _, name := range []struct {
		flag, value string
		check       func(string) []string
	}{
		{"--namespace", r.Namespace, validation.IsDNS1123Label},
		{"--service-account", r.ServiceAccount, validation.IsDNS1123Subdomain},
		{"--scc", r.SCC, validation.IsDNS1123Subdomain},
		{"pool", r.Pool, validation.IsDNS1123Subdomain},
	} {
		if found := name.check(name.value); name.value != "" && len(found) > 0 {
			mistake(name.flag, name.value, "%s", strings.Join(found, "; "))
		}
	}
	if !r.rdma() {
		const why = "the cluster file of %s has network.rdma.enabled false, and mode tcp needs nothing of it"
		if r.SCC != "" {
			mistake("--scc", r.SCC, why, r.Cluster.Cluster.Name)
		}
		if r.Reboot {
			mistake("--reboot-pool", r.Pool, why, r.Cluster.Cluster.Name)
		}
	}
	r.validateSCC(mistake)
	r.validateAttachments(mistake)
	if len(problems) == 0 {
		return nil
	}
	return fail.Because(fail.InvalidInput, errors.Join(problems...))
}

// withoutIPCLock are OpenShift's own constraints that allow no IPC_LOCK.
func withoutIPCLock() []string {
	return []string{
		"anyuid", "hostaccess", "hostmount-anyuid", "hostnetwork", "hostnetwork-v2", "nonroot", "nonroot-v2",
		"restricted", "restricted-v2", "restricted-v3",
	}
}

func (r Request) validateSCC(mistake func(what, value, format string, args ...any)) {
	pinned := r.Cluster.Security.Pinned()
	if r.SCC != "" && pinned != "" && r.SCC != pinned {
		mistake("--scc", r.SCC, "the cluster file pins the pods to %s, which no other constraint may admit then: leave --scc out, or correct security.scc", pinned)
	}
	what := "--scc"
	if r.SCC == "" {
		what = "security.scc"
	}
	scc := r.scc()
	if slices.Contains(withoutIPCLock(), scc) {
		mistake(what, scc, "allows no IPC_LOCK: want %s, privileged, or one of the cluster's own", OwnSCC)
	}
	if others := slices.DeleteFunc(r.Cluster.Security.Adds(), func(name string) bool { return name == "IPC_LOCK" }); scc == OwnSCC && len(others) > 0 {
		mistake(what, scc, "allows no %s, which security.capabilities asks for: leave that out, or name a constraint of the cluster's own that allows it", strings.Join(others, ", "))
	}
	if scc == OwnSCC && r.Cluster.Security.RequiresPrivilegedSCC {
		mistake(what, scc, "admits no privileged pods, which security.requires_privileged_scc makes: want privileged")
	}
}

func (r Request) validateAttachments(mistake func(what, value, format string, args ...any)) {
	if !r.CopyAttachments {
		return
	}
	attachments := r.Cluster.Network.RDMA.Attachments
	if len(attachments) == 0 {
		mistake("--attachments", "copy", "the cluster file of %s has no network.rdma.attachments", r.Cluster.Cluster.Name)
	}
	seen := map[string]string{}
	for _, attachment := range attachments {
		namespace, name, _ := strings.Cut(attachment, "/")
		if namespace == r.Namespace {
			mistake("--attachments", "copy", "attachment %s is in namespace %s already", attachment, r.Namespace)
		}
		if other, twice := seen[name]; twice {
			mistake("--attachments", "copy", "attachments %s and %s would have one name", other, attachment)
		}
		seen[name] = attachment
	}
}
