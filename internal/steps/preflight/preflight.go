// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether an environment can start on a cluster, and whether its nodes can
// use RDMA, and whether a run's params are what its later steps need. It only reads, and sends dry runs to the API server.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/parallel"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// timeLimit bounds all checks: what has no answer by then is unknown. In a pod only the API server may take longer.
const timeLimit = 9 * time.Second

// Placeholders of images that are not known yet: the API server checks only their form.
const (
	imageToBuild = "registry.invalid/ml-dev-env/training:to-be-built"
	stepsToName  = "registry.invalid/ml-dev-env/steps:to-be-named"
)

// Options are the requested environment.
type Options struct {
	// Request is the environment. Its Mode is ignored; its images may be missing.
	Request objects.Request
	// Mode may be agent.Auto.
	Mode agent.Mode
	// Flavour is the image to build if none is named.
	Flavour string
	// Run is the PipelineRun that the step is part of, if any.
	Run run.Flags
	// Invalid are the mistakes in flags that are params of the run: the report lists them with everything else.
	Invalid error
	// Scratch is the folder for what git fetches, "" for a temporary one.
	Scratch string
	// ServiceAccount runs the steps; empty for the caller.
	ServiceAccount string
}

// Deps are what Run and Examine work with.
type Deps struct {
	Clients *kube.Clients
	// Registry has the image; nil leaves the image unknown.
	Registry *buildimage.Registry
	Secrets  Secrets
	// Out receives the report of Run, one line if nothing is wrong; without Out each check is a record of Log.
	Out io.Writer
	Log *slog.Logger
}

// Secrets are those that the run's params name.
type Secrets struct {
	Git git.Auth
	// GitUnread is true if they could not be read.
	GitUnread bool
	// Variables are the names of the ranks' secret variables.
	Variables []string
	Problems  []error
}

type probe struct {
	Options
	Deps
	file cluster.File
	rdma bool
	// own is the PipelineRun of Run, nil if there is none or it cannot be read.
	own *v1.PipelineRun
	// building is true if the image does not exist yet.
	building bool
	// first are the checks that need no answer of the cluster.
	first []Check
	// objects of the request by mode: tcp always, rdma if it is examined.
	objects map[agent.Mode]objects.Objects

	groups     map[string]bool
	candidates func() ([]diagnose.Candidate, error)
	// free is set by check nodes: the nodes that have room for the pods at this moment.
	free    []string
	quotas  func() ([]corev1.ResourceQuota, error)
	configs func() ([]booted, error)
	// lock is nil if the cluster file decides whether the pods ask for IPC_LOCK, or RDMA is not examined.
	lock *locking
}

func (p *probe) env() env.Environment { return env.Of(p.Clients, p.Request.Name) }

// Run makes all checks and prints the report. Its error is why no environment can start.
func Run(ctx context.Context, d Deps, o Options) (report Report, err error) {
	kept := receipt.NewWriter(ctx, d.Clients, d.Log, o.Run, o.Request.Name)
	defer func() {
		kept.End(ctx, err, func(p *receipt.Entry) {
			mode, why := report.Mode()
			p.Mode, p.ModeReason = mode, why
		})
	}()
	report = Examine(ctx, d, o)
	if d.Out == nil {
		for _, check := range report.Checks {
			d.Log.Info("checked "+check.Object, "event", "checked", slog.String("status", string(check.Status)), slog.String("seen", check.Seen),
				slog.String("next", check.Next))
		}
		d.Log.Info("Verdict: " + report.Verdict() + ".")
		return report, report.Err()
	}
	var text strings.Builder
	if report.needsNoAttention() {
		fmt.Fprintln(&text, report.oneLine())
	} else {
		report.Print(&text)
	}
	_, err = io.WriteString(d.Out, command.ForTerminal(text.String()))
	return report, cmp.Or(err, report.Err())
}

// Examine makes all checks at once, within ten seconds.
func Examine(ctx context.Context, d Deps, o Options) Report {
	ctx, cancel := context.WithTimeout(ctx, limitOf(d.Clients))
	defer cancel()
	p, err := newProbe(ctx, d, o)
	checks := []func(context.Context) []Check{p.params, p.timeouts, p.secrets, bounded(p.repository), p.environment, p.idle}
	switch {
	case p.Invalid != nil && p.own != nil: // check params lists them
	case err != nil:
		p.first = append(p.first, blockedBy("request", err))
	default:
		checks = append(checks, p.cluster, p.apiGroups, p.permissions, p.admission, p.attachments, p.nodes, p.iommu, p.storage, p.claimsOf,
			p.quota, p.queue, p.monitoring, bounded(p.image))
	}
	found := parallel.Map(checks, func(check func(context.Context) []Check) []Check { return check(ctx) })
	return Report{
		Asked: o.Mode, Checks: causes(slices.Concat(slices.Insert(found, 0, p.first)...)),
		request: p.Request, free: p.free, objects: p.objects,
	}
}

func limitOf(clients *kube.Clients) time.Duration {
	if clients.InCluster {
		return timeLimit + kube.Patience
	}
	return timeLimit
}

// bounded bounds a check that asks other servers.
func bounded(check func(context.Context) []Check) func(context.Context) []Check {
	return func(ctx context.Context) []Check {
		ctx, cancel := context.WithTimeout(ctx, timeLimit)
		defer cancel()
		return check(ctx)
	}
}

// Names of checks that other code depends on.
const (
	namespaceCheck = "namespace"
	neededCheck    = "permissions"
	lookingCheck   = "permissions to look"
	// choiceCheck is whether RDMA is examined at all.
	choiceCheck = "rdma"
	nodePrefix  = "node "
)

// causes removes what only follows from another check: in a missing namespace no account has rights.
func causes(checks []Check) []Check {
	if !slices.ContainsFunc(checks, func(c Check) bool { return c.Object == namespaceCheck }) {
		return checks
	}
	return slices.DeleteFunc(checks, func(c Check) bool { return c.Object == neededCheck || c.Object == lookingCheck })
}

// newProbe returns a probe with an error too: what the run's params name can be checked for any request.
func newProbe(ctx context.Context, d Deps, o Options) (*probe, error) {
	p := &probe{Options: o, Deps: d, objects: map[agent.Mode]objects.Objects{}}
	p.readRun(ctx)
	p.building = p.Request.Image == "" && (p.Flavour != "" || p.Request.Cluster.Image.Name == "")
	if p.building {
		p.Request.Image = imageToBuild
	}
	if p.Request.StepsImage == "" {
		p.Request.StepsImage = stepsToName
	}
	p.Request = p.Request.WithDefaults()
	p.file = p.Request.Cluster
	if p.Invalid != nil {
		return p, fail.Because(fail.InvalidInput, p.Invalid)
	}
	if err := p.buildObjects(agent.TCP); err != nil {
		return p, err
	}
	p.decideRDMA(ctx)
	// Every account may read the groups: without them the API server is not usable.
	var err error
	if p.groups, err = p.listGroups(ctx); err != nil {
		return p, kube.Problem(fmt.Errorf("asking the API server for its groups: %w", err))
	}
	p.candidates = sync.OnceValues(func() ([]diagnose.Candidate, error) {
		list, err := p.Clients.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		found := diagnose.Candidates(list.Items, p.podSpec())
		for i := range found {
			if c := &found[i]; p.Request.Queue != "" && c.Reason == fail.NodeTainted { // Kueue adds its flavours' tolerations
				c.Final, c.Next = false, "nothing, if a ResourceFlavor of the queue has the toleration; else "+c.Next
			}
		}
		return found, nil
	})
	p.quotas = sync.OnceValues(func() ([]corev1.ResourceQuota, error) {
		list, err := p.Clients.Kube.CoreV1().ResourceQuotas(p.Request.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	})
	p.configs = sync.OnceValues(func() ([]booted, error) { return p.readConfigs(ctx) })
	p.decideLock(ctx)
	return p, nil
}

// buildObjects builds the objects in a mode. provision decides about storage auto; no check of the pods depends on it.
func (p *probe) buildObjects(mode agent.Mode) error {
	r := p.Request
	r.Mode = mode
	if p.shared() {
		r.Storage = cluster.SharedStorage
	} else if r.Storage == cluster.AutoStorage {
		r.Storage = cluster.NodeStorage
	}
	built, err := objects.Build(r, objects.LeaseReference(r.Names().Lease, "preflight"), objects.Certificates{})
	p.objects[mode] = built
	return err
}

// Needless returns why a request whose mode is auto needs no RDMA, "" if it may need it.
func Needless(r objects.Request) string {
	switch {
	case r.Nodes == 1:
		return "one node has no peer"
	case r.GPUs() == 0:
		return "the nodes have no GPUs"
	}
	return ""
}

func (p *probe) decideRDMA(ctx context.Context) {
	rdma := p.file.Network.RDMA
	decide := func(status Status, next, format string, args ...any) {
		p.first = append(p.first, newCheck(choiceCheck, status, next, format, args...))
	}
	switch {
	case p.Mode == agent.TCP:
		return
	case !rdma.Enabled:
		decide(BlockedRDMA, "if the cluster has RDMA, set network.rdma.enabled and the other keys of network.rdma",
			"the cluster file of %s disables it: network.rdma.enabled is false", p.file.Cluster.Name)
		return
	case p.Mode == agent.Auto && Needless(p.Request) != "":
		decide(BlockedRDMA, "", "%s", Needless(p.Request))
		return
	}
	if obsolete := p.file.Obsolete(); len(obsolete) > 0 { // host devices may exist without these interfaces
		decide(Warning, "mlenv validate prints all obsolete values of the cluster file", "%s of the cluster file is obsolete: %s",
			obsolete[0].Field, obsolete[0].Detail)
	}
	if err := p.buildObjects(agent.RDMA); err != nil {
		decide(BlockedRDMA, fail.NextOf(err), "%s", oneLine(err.Error()))
		return
	}
	p.rdma = true
	if rdma.Plugged() {
		decide(OK, "", "by %s: %s, %s", rdma.DescribeForm(), humanize.Count(len(rdma.Attachments), "attachment"),
			humanize.Count(len(rdma.Resources), "resource"))
	} else {
		on := ""
		if rdma.HostNetwork {
			on = " on their host's network (network.rdma.host_network)"
		}
		decide(OK, "", "by the host's own devices, in privileged pods%s; %s", on, p.proof(ctx))
	}
}

// proof describes what is known of RDMA by host devices, which the API server does not show.
func (p *probe) proof(ctx context.Context) string {
	last, ok, err := receipt.Latest(ctx, p.Clients.Kube, p.Request.Namespace, p.Request.Name)
	if err == nil && ok && provesRDMA(last) {
		return "proven by check-fabric of run " + last.Run
	}
	return "unproven over Ethernet until check-fabric passes: docs/project/unproven.md"
}

func provesRDMA(r receipt.Receipt) bool {
	return r.Mode == agent.RDMA && r.Fabric != nil && r.Fabric.Verdict == fabric.Pass &&
		r.Fabric.Network != nil && slices.Contains([]nccl.Transport{nccl.RDMAHost, nccl.RDMAGPU}, r.Fabric.Network.Transport)
}

// adminCommand returns the command with which an administrator prepares this namespace.
func (p *probe) adminCommand(flags ...string) string {
	return strings.Join(append([]string{"mlenv", "admin", "clusters/" + p.file.Cluster.Name + ".yaml", "-n", p.Request.Namespace}, flags...),
		" ")
}

// podSpec returns the spec of the nodes' pods, in mode rdma if it is examined.
func (p *probe) podSpec() *corev1.PodSpec {
	mode := agent.TCP
	if p.rdma {
		mode = agent.RDMA
	}
	return &p.objects[mode].StatefulSet.Spec.Template.Spec
}

// unread returns a check without an answer, with the command that would allow to read it.
func unread(name, what string, err error) Check {
	err = kube.Problem(err)
	if fail.ReasonOf(err) == fail.PermissionDenied {
		return newCheck(name, Unknown, fail.NextOf(err), "%s may not be read", what)
	}
	return newCheck(name, Unknown, fail.NextOf(err), "%s: %s", what, oneLine(err.Error()))
}

// oneLine returns text on one line, short enough for a table.
func oneLine(text string) string { return humanize.OneLine(text, 400) }
