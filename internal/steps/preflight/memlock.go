// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install/admin"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

const (
	// inherited is what containers may lock without a setting: CRI-O passes on its own limit, which is systemd's default.
	inherited rdma.Bytes = 8 << 20
	// mostConfig is more than any file of CRI-O's configuration has.
	mostConfig = 1 << 20
)

// memlockSettings are where a machine configuration can set how much memory containers may lock. A later setting wins, and so does the
// last of several files in a folder.
var memlockSettings = []struct {
	folder string
	value  *regexp.Regexp
}{
	{"/etc/systemd/system.conf.d/", regexp.MustCompile(`(?m)^\s*DefaultLimitMEMLOCK\s*=\s*(?:[^:\s]*:)?(\S+)`)},
	{crioUnit, regexp.MustCompile(`(?m)^\s*LimitMEMLOCK\s*=\s*(?:[^:\s]*:)?(\S+)`)},
	{"/etc/crio/crio.conf.d/", regexp.MustCompile(`(?m)^\s*default_ulimits\s*=\s*\[[^\]]*["']memlock=(?:[^:"']*:)?([^"']+)["']`)},
}

// crioUnit is the folder of the unit's drop-ins, which a machine configuration may also name without a path.
const crioUnit = "/etc/systemd/system/crio.service.d/"

// memlock returns how much memory containers may lock on nodes with a machine configuration.
func memlock(config *unstructured.Unstructured) (rdma.Bytes, error) {
	files := map[string]string{}
	entries, _, _ := unstructured.NestedSlice(config.Object, "spec", "config", "storage", "files")
	for _, entry := range entries {
		file, _ := entry.(map[string]any)
		path, _, _ := unstructured.NestedString(file, "path")
		source, _, _ := unstructured.NestedString(file, "contents", "source")
		compression, _, _ := unstructured.NestedString(file, "contents", "compression")
		var err error
		for _, setting := range memlockSettings {
			if strings.HasPrefix(path, setting.folder) {
				files[path], err = contents(source, compression)
			}
		}
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	units, _, _ := unstructured.NestedSlice(config.Object, "spec", "config", "systemd", "units")
	for _, entry := range units {
		unit, _ := entry.(map[string]any)
		dropins, _, _ := unstructured.NestedSlice(unit, "dropins")
		for _, entry := range dropins {
			dropin, _ := entry.(map[string]any)
			if name, _, _ := unstructured.NestedString(dropin, "name"); unit["name"] == "crio.service" {
				files[crioUnit+name], _, _ = unstructured.NestedString(dropin, "contents")
			}
		}
	}
	limit := inherited
	for _, setting := range memlockSettings {
		for _, path := range slices.Sorted(maps.Keys(files)) {
			found := setting.value.FindStringSubmatch(files[path])
			if found == nil || !strings.HasPrefix(path, setting.folder) {
				continue
			}
			var err error
			if limit, err = parseLimit(found[1]); err != nil {
				return 0, fmt.Errorf("reading %s: %w", path, err)
			}
		}
	}
	return limit, nil
}

// contents decodes the data URL of a file in Ignition's configuration.
func contents(source, compression string) (string, error) {
	header, data, _ := strings.Cut(strings.TrimPrefix(source, "data:"), ",")
	text, err := url.PathUnescape(data)
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(header, ";base64") {
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", err
		}
		text = string(decoded)
	}
	if compression != "gzip" {
		return text, nil
	}
	unpacked, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		return "", err
	}
	var all bytes.Buffer
	_, err = io.Copy(&all, io.LimitReader(unpacked, mostConfig))
	return all.String(), err
}

// parseLimit reads a limit as systemd and CRI-O write it: a number of bytes, or of K, M, G and T, or none.
func parseLimit(text string) (rdma.Bytes, error) {
	if text == "infinity" || text == "-1" {
		return rdma.Unlimited, nil
	}
	number, unit := text, 0
	if last := strings.IndexByte("KMGT", text[len(text)-1]); last >= 0 {
		number, unit = text[:len(text)-1], last+1
	}
	amount, err := strconv.ParseInt(number, 10, 64)
	if err != nil || amount < 0 {
		return 0, fmt.Errorf("the limit of locked memory is %q, want a number of bytes or infinity", text)
	}
	return rdma.Bytes(amount << (10 * unit)), nil
}

// locking is what is known of the pods' right to lock memory where the cluster file asks for no capability.
type locking struct {
	// short are the configurations that let containers lock too little, with how much; unread is why some are unknown, "" for none.
	short  []string
	unread string
	// enough is how many nodes let containers lock enough, or may do so.
	enough int
	// scc allows IPC_LOCK to the pods' account; otherwise refused is why none does, "" if that is unknown.
	scc, refused string
}

// LockMemory returns the request with security.ipc_lock if its pods need the capability to register memory, and may have it by a
// constraint that the cluster file does not name. why is "" if nothing changed. After an error that is unknown.
func LockMemory(ctx context.Context, clients *kube.Clients, r objects.Request) (changed objects.Request, why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limitOf(clients))
	defer cancel()
	p, err := newProbe(ctx, Deps{Clients: clients}, Options{Request: r, Mode: agent.RDMA})
	if err != nil || p.lock == nil || p.lock.scc == "" {
		return r, "", err
	}
	r.Cluster.Security.IPCLock = true
	return r, p.lock.why(), nil
}

// decideLock has the pods ask for IPC_LOCK if it is not known that they can register memory without it, and a constraint that their
// account may use allows it. The cluster chooses the most restrictive one.
func (p *probe) decideLock(ctx context.Context) {
	security := p.file.Security
	if !p.rdma || !p.groups[securityGroup] || security.RequiresPrivilegedSCC || slices.Contains(security.AddedCapabilities(), "IPC_LOCK") {
		return
	}
	p.lock = p.nodesLimits()
	if len(p.lock.short) == 0 && p.lock.unread == "" {
		return
	}
	before := p.Request
	p.Request.Cluster.Security.IPCLock = true
	if err := p.buildObjects(agent.RDMA); err == nil {
		p.lock.scc, p.lock.refused = p.allowsLock(ctx)
	}
	if p.lock.scc == "" {
		p.Request = before
		_ = p.buildObjects(agent.RDMA) // as it was built before
	}
}

// nodesLimits reads how much memory containers may lock on the nodes.
func (p *probe) nodesLimits() *locking {
	var l locking
	configs, err := p.configs()
	if err != nil {
		l.unread = "the nodes may not be read"
	} else if len(configs) == 0 {
		l.unread = "there are no nodes"
	}
	for _, config := range configs {
		if config.object == nil {
			l.unread, l.enough = "their machine configuration cannot be read", l.enough+len(config.nodes)
			continue
		}
		limit, err := memlock(config.object)
		switch {
		case err != nil:
			l.unread, l.enough = oneLine(err.Error()), l.enough+len(config.nodes)
		case rdma.Memlock{Hard: limit}.Enough():
			l.enough += len(config.nodes)
		default:
			l.short = append(l.short, fmt.Sprintf("%s on %s (%s)", limit, config.nodeNames(), config.name))
		}
	}
	return &l
}

// allowsLock asks the cluster for the constraint that admits a pod with IPC_LOCK by the right of its own account.
func (p *probe) allowsLock(ctx context.Context) (scc, refused string) {
	account, _ := p.account(ctx)
	if account != p.file.Security.ServiceAccount {
		return "", ""
	}
	t := p.tryAdmission(ctx, agent.RDMA, account)
	none := "no security context constraint that service account " + account + " may use allows IPC_LOCK"
	switch {
	case t.refused != nil && t.refused.Reason == fail.SecurityRefused:
		return "", none
	case t.answered == nil || t.refused != nil || t.unknown != nil:
		return "", ""
	}
	scc = t.answered.Annotations[objects.AdmittedByAnnotation]
	allowed, err := t.answered.Annotations[admittedFor] == forPodAccount, error(nil)
	if !allowed {
		allowed, err = p.mayUse(ctx, account, scc)
	}
	switch {
	case err != nil:
		return "", ""
	case !allowed:
		return "", none
	case scc == cluster.PrivilegedSCC && p.file.Security.Pinned() != scc:
		return "", "of the security context constraints that service account " + account + " may use only privileged allows IPC_LOCK, and the " +
			"cluster file does not ask for it"
	}
	return scc, ""
}

// without describes what pods without IPC_LOCK may lock.
func (l *locking) without() string {
	if len(l.short) > 0 {
		return "containers may lock only " + strings.Join(l.short, ", ")
	}
	return "CRI-O's default lets containers lock only " + inherited.String() + ", and whether the nodes raise it is unknown: " + l.unread
}

// why says which constraint the pods use, and why.
func (l *locking) why() string {
	return fmt.Sprintf("the pods ask for IPC_LOCK, which security context constraint %s allows them, because %s", l.scc, l.without())
}

// memoryLock checks whether the admitted pod may lock memory, which RDMA needs. An
// added capability is effective only in a process of root: there is no ambient set.
func (p *probe) memoryLock(pod *corev1.Pod) Check {
	const name = "locked memory"
	unknown := newCheck(name, Unknown, "mlenv rdma --check, once the nodes are up; security.ipc_lock in the cluster file, or the nodes' "+
		"memlock raised, makes sure; docs/project/unproven.md",
		"the pod has no IPC_LOCK: as much may be locked as CRI-O's limit allows, which only a pod sees")
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == objects.TrainContainer })
	if i < 0 || pod.Spec.Containers[i].SecurityContext == nil {
		return unknown
	}
	c, ofPod := pod.Spec.Containers[i].SecurityContext, cmp.Or(pod.Spec.SecurityContext, &corev1.PodSecurityContext{})
	user, notRoot := cmp.Or(c.RunAsUser, ofPod.RunAsUser), cmp.Or(c.RunAsNonRoot, ofPod.RunAsNonRoot)
	// The image's own user is not known here, except that it is not root if the pod must not be.
	root := user == nil && (notRoot == nil || !*notRoot) || user != nil && *user == 0
	lock := objects.AsksIPCLock(&pod.Spec)
	switch {
	case root && c.Privileged != nil && *c.Privileged:
		return newCheck(name, OK, "", "the pod is privileged: any amount may be locked")
	case root && lock && p.lock != nil:
		return newCheck(name, OK, "", "%s", p.lock.why())
	case root && lock:
		return newCheck(name, OK, "", "IPC_LOCK is effective: any amount may be locked")
	case lock:
		return newCheck(name, Warning, "use a constraint that lets the pod run as root, or have the nodes' memlock raised: "+p.adminCommand(),
			"IPC_LOCK is not effective for a user that is not root: as much may be locked as CRI-O's limit allows")
	case p.lock == nil || len(p.lock.short) == 0 && p.lock.unread != "":
		return unknown
	case len(p.lock.short) == 0:
		return newCheck(name, OK, "", "the pod has no IPC_LOCK and needs none: the machine configurations let containers lock enough")
	}
	status, allows := BlockedRDMA, cmp.Or(p.lock.refused, "whether a security context constraint allows IPC_LOCK is unknown")
	if p.lock.enough >= p.Request.Nodes {
		status = Warning
	}
	return newCheck(name, status, fmt.Sprintf("%s (a constraint that allows it), or %s (no limit; it reboots the pool)",
		p.adminCommand("--scc="+admin.OwnSCC), p.adminCommand("--reboot-pool="+admin.DefaultPool)),
		"the pod has no IPC_LOCK, and %s: registering memory would fail with ENOMEM; %s", p.lock.without(), allows)
}
