// Package preflight tells, before anything is made, whether an environment can be
// had on a cluster and whether its nodes can talk over RDMA. It only reads, and lets
// the API server try in dry runs.
package preflight

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/buildimage"
)

// Auto is the mode that takes RDMA where it is possible. The others are those of
// package environment.
const Auto = "auto"

// timeLimit is for everything: what has not answered by then is unknown.
const timeLimit = 9 * time.Second

// Images that are not known yet; the API server looks no further than their form.
const (
	imageToBuild = "registry.invalid/ml-dev-env/training:to-be-built"
	stepsToName  = "registry.invalid/ml-dev-env/steps:to-be-named"
)

// Options say what is asked for.
type Options struct {
	// Request is the environment. Its Mode is not looked at; its images may be missing.
	Request objects.Request
	// Mode is auto, rdma or tcp.
	Mode string
	// Flavour is what is to be built where no image is named.
	Flavour string
	// ServiceAccount is the one that the steps run as, "" for whoever asks.
	ServiceAccount string
	// Output is how Run shows the report.
	Output step.OutputFlag
}

// Deps are what Run and Examine work with.
type Deps struct {
	Clients *kube.Clients
	// Dynamic reads network attachments, machine configurations and security context
	// constraints; nil for one made of the Clients' configuration.
	Dynamic dynamic.Interface
	// Registry answers whether the image is there; nil leaves that unknown.
	Registry *buildimage.Registry
	// Out gets the report of Run; without it each check is a record of Log.
	Out io.Writer
	Log *slog.Logger
}

// probe is the preflight of one request.
type probe struct {
	Options
	Deps
	file cluster.File
	// rdma is false where RDMA is not looked at.
	rdma bool
	// building is true where the image does not exist yet.
	building bool
	// first are the checks that were decided before anything was asked.
	first []Check
	// objects of the request by mode: tcp always, rdma where it is looked at.
	objects map[objects.Mode]objects.Objects

	// groups are the API groups that the cluster has.
	groups map[string]bool
	places func() ([]diagnose.Candidate, error)
	// free are the nodes that the pods can be on at this moment, of check nodes.
	free   []string
	quotas func() ([]corev1.ResourceQuota, error)
}

// Run makes all checks and shows the report. The error says why no environment can start.
func Run(ctx context.Context, d Deps, o Options) (Report, error) {
	report := Examine(ctx, d, o)
	if d.Out == nil {
		for _, check := range report.Checks {
			d.Log.Info("checked "+check.Name, slog.String("verdict", string(check.Verdict)), slog.String("evidence", check.Seen), slog.String("fix", check.Fix))
		}
		d.Log.Info("Verdict: " + report.Verdict() + ".")
		return report, report.Err()
	}
	err := o.Output.Print(d.Out, report, func(out io.Writer) error {
		report.Print(out)
		return nil
	})
	if err != nil {
		return report, err
	}
	return report, report.Err()
}

// Examine makes all checks at once, within ten seconds. What is wrong is in the report.
func Examine(ctx context.Context, d Deps, o Options) Report {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	p, err := newProbe(ctx, d, o)
	if err != nil {
		return Report{Asked: o.Mode, Checks: []Check{{
			Name: "request", Verdict: Blocked, Seen: oneLine(err.Error()), Fix: fail.NextOf(err), Reason: fail.ReasonOf(err),
		}}}
	}
	checks := []func(context.Context) []Check{
		p.cluster, p.apiGroups, p.permissions, p.admission, p.attachments, p.nodes, p.iommu, p.storage, p.quota, p.image,
	}
	found := make([][]Check, len(checks))
	var all sync.WaitGroup
	for i, check := range checks {
		all.Go(func() { found[i] = check(ctx) })
	}
	all.Wait()
	return Report{
		Asked: o.Mode, Checks: causes(slices.Concat(slices.Insert(found, 0, p.first)...)),
		request: p.Request, free: p.free, objects: p.objects,
	}
}

// Names of checks that others depend on.
const (
	namespaceCheck = "namespace"
	neededCheck    = "permissions"
	lookingCheck   = "permissions to look"
)

// causes leaves out what only follows from another check: in a namespace that is not there
// nobody has rights.
func causes(checks []Check) []Check {
	if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == namespaceCheck }) {
		return checks
	}
	return slices.DeleteFunc(checks, func(c Check) bool { return c.Name == neededCheck || c.Name == lookingCheck })
}

func newProbe(ctx context.Context, d Deps, o Options) (*probe, error) {
	p := &probe{Options: o, Deps: d, objects: map[objects.Mode]objects.Objects{}}
	if p.Dynamic == nil {
		var err error
		if p.Dynamic, err = dynamic.NewForConfig(p.Clients.Config); err != nil {
			return nil, fail.Becausef(fail.InvalidInput, "making a client for %s: %w", p.Clients.Config.Host, err)
		}
	}
	p.building = p.Request.Image == "" && (p.Flavour != "" || p.Request.Cluster.Image.Name == "")
	if p.building {
		p.Request.Image = imageToBuild
	}
	if p.Request.StepsImage == "" {
		p.Request.StepsImage = stepsToName
	}
	p.Request = p.Request.WithDefaults()
	p.file = p.Request.Cluster
	if err := p.build(objects.TCP); err != nil {
		return nil, err
	}
	p.decideRDMA()
	// Everybody may ask for them: where they are not told, nothing can be.
	var err error
	if p.groups, err = p.listGroups(ctx); err != nil {
		return nil, kube.Problem(fmt.Errorf("asking the API server for its groups: %w", err))
	}
	p.places = sync.OnceValues(func() ([]diagnose.Candidate, error) { return p.listPlaces(ctx) })
	p.quotas = sync.OnceValues(func() ([]corev1.ResourceQuota, error) { return p.listQuotas(ctx) })
	return p, nil
}

// build makes the objects in a mode. Which storage auto comes to is not known here,
// and of no matter to any check of the pods.
func (p *probe) build(mode objects.Mode) error {
	r := p.Request
	r.Mode = mode
	if r.Storage == cluster.AutoStorage {
		r.Storage = cluster.NodeStorage
		if p.file.Storage.ClassRWX != "" {
			r.Storage = cluster.SharedStorage
		}
	}
	objects, err := objects.Build(r, objects.LeaseReference(objects.NamesOf(r.Name).Lease, "preflight"), objects.Certificates{})
	p.objects[mode] = objects
	return err
}

// decideRDMA says whether RDMA is looked at, and in which form.
func (p *probe) decideRDMA() {
	rdma := p.file.Network.RDMA
	say := func(verdict Verdict, seen, fix string) {
		p.first = append(p.first, Check{Name: "rdma", Verdict: verdict, Seen: seen, Fix: fix})
	}
	switch {
	case p.Mode == string(objects.TCP):
		return
	case !rdma.Enabled:
		say(BlockedRDMA, fmt.Sprintf("the cluster file of %s says that it has none: network.rdma.enabled is false", p.file.Cluster.Name),
			"where that is not so any more, set network.rdma.enabled and what goes with it")
		return
	case p.Mode == Auto && p.Request.Nodes == 1:
		say(BlockedRDMA, "one node has nobody to talk to", "")
		return
	}
	if err := p.build(objects.RDMA); err != nil {
		say(BlockedRDMA, oneLine(err.Error()), fail.NextOf(err))
		return
	}
	p.rdma = true
	if rdma.SRIOV() {
		say(OK, fmt.Sprintf("by SR-IOV: %s, %s", humanize.Count(len(rdma.Attachments), "attachment"), humanize.Count(len(rdma.Resources), "resource")), "")
	} else {
		say(OK, "by the host's own devices, in privileged pods", "")
	}
}

// admin is the command by which an administrator prepares this namespace.
func (p *probe) admin(flags ...string) string {
	return strings.Join(append([]string{"mlenv", "admin", "clusters/" + p.file.Cluster.Name + ".yaml", "-n", p.Request.Namespace}, flags...), " ")
}

// spec is what the nodes' pods ask for, in the best mode that is looked at.
func (p *probe) spec() *corev1.PodSpec {
	mode := objects.TCP
	if p.rdma {
		mode = objects.RDMA
	}
	return &p.objects[mode].StatefulSet.Spec.Template.Spec
}

// unread is a check whose answer could not be had, with what would let it be read.
func unread(name, what string, err error) Check {
	err = kube.Problem(err)
	check := Check{Name: name, Verdict: Unknown, Seen: what + ": " + oneLine(err.Error()), Fix: fail.NextOf(err)}
	if fail.ReasonOf(err) == fail.PermissionDenied {
		check.Seen = what + " may not be read"
	}
	return check
}

// oneLine is text on one line, no longer than a table bears.
func oneLine(text string) string { return humanize.OneLine(text, 400) }

// listed is "a, b and 3 more".
func listed(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
