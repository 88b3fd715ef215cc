// SPDX-License-Identifier: Apache-2.0

// Package admin prints the manifests that an administrator applies once, so that a service account of a namespace can
// train over RDMA, with reasons and checks as comments.
package admin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// DefaultPool is the MachineConfigPool of a request that names none.
const DefaultPool = "worker"

// Request describes the set-up of one service account.
type Request struct {
	Cluster cluster.File
	// ClusterFile is its path, for commands that users paste.
	ClusterFile    string
	Namespace      string
	ServiceAccount string
	// SCC is the constraint that a flag names, or "".
	SCC             string
	CopyAttachments bool
	Pool            string
	// Reboot includes the MachineConfigs: applying them reboots all nodes of the pool.
	Reboot bool
}

// WithDefaults fills in the cluster file's values.
func (r Request) WithDefaults() Request {
	r.Namespace = cmp.Or(r.Namespace, r.Cluster.Cluster.Namespace)
	r.ServiceAccount = cmp.Or(r.ServiceAccount, r.Cluster.Security.ServiceAccount)
	r.Pool = cmp.Or(r.Pool, DefaultPool)
	return r
}

// sccName returns the constraint that admits the pods, or "" if they request no capability and every account may use the one they need.
func (r Request) sccName() string {
	security := r.Cluster.Security
	switch {
	case r.SCC != "":
		return r.SCC
	case !r.wantsRDMA():
		return ""
	case security.Pinned() != "":
		return security.Pinned()
	case len(security.AddedCapabilities()) > 0:
		return OwnSCC
	}
	return ""
}

func (r Request) wantsRDMA() bool { return r.Cluster.Network.RDMA.Enabled }

// Validate reports all mistakes in one pass, as InvalidInput.
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
		{"--pod-account", r.ServiceAccount, validation.IsDNS1123Subdomain},
		{"--scc", r.SCC, validation.IsDNS1123Subdomain},
		{"pool", r.Pool, validation.IsDNS1123Subdomain},
	} {
		if found := name.check(name.value); name.value != "" && len(found) > 0 {
			mistake(name.flag, name.value, "%s", strings.Join(found, "; "))
		}
	}
	if !r.wantsRDMA() {
		const why = "the cluster file of %s has network.rdma.enabled false, and mode tcp does not need it"
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

// withoutIPCLock are OpenShift's own constraints that do not allow IPC_LOCK.
var withoutIPCLock = []string{
	"anyuid", "hostaccess", "hostmount-anyuid", "hostnetwork", "hostnetwork-v2", "nonroot", "nonroot-v2",
	"restricted", "restricted-v2", "restricted-v3",
}

func (r Request) validateSCC(mistake func(what, value, format string, args ...any)) {
	scc, pinned := r.sccName(), r.Cluster.Security.Pinned()
	if r.SCC != "" && pinned != "" && r.SCC != pinned {
		mistake("--scc", r.SCC, "the cluster file pins the pods to %s, so no other constraint can admit them: omit --scc, or correct "+
			"security.scc", pinned)
	}
	what := "--scc"
	if r.SCC == "" {
		what = "security.scc"
	}
	if slices.Contains(withoutIPCLock, scc) {
		mistake(what, scc, "does not allow IPC_LOCK: want %s, privileged, or one of the cluster's own", OwnSCC)
	}
	if scc != OwnSCC {
		return
	}
	others := slices.DeleteFunc(r.Cluster.Security.AddedCapabilities(), func(name string) bool { return name == "IPC_LOCK" })
	if len(others) > 0 {
		mistake(what, scc, "does not allow %s, which security.capabilities requests: remove it, or name one of the cluster's own constraints "+
			"that allows it", strings.Join(others, ", "))
	}
	if r.Cluster.Security.RequiresPrivilegedSCC {
		mistake(what, scc, "does not admit privileged pods, and security.requires_privileged_scc is true: want privileged")
	}
}

func (r Request) validateAttachments(mistake func(what, value, format string, args ...any)) {
	if !r.CopyAttachments {
		return
	}
	attachments := r.originals()
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
			mistake("--attachments", "copy", "the copies of %s and %s would have the same name", other, attachment)
		}
		seen[name] = attachment
	}
}
