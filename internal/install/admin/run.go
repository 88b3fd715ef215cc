package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/step"
)

// Options are the request, and how to report.
type Options struct {
	Kube    kube.Flags
	Request Request
	// Attachments is none, or copy for copies of the file's network attachments in the namespace.
	Attachments string
	Output      step.OutputFlag
}

// Read completes the request by the cluster file, the only argument, or else by the only one that is installed in the namespace. Errors:
// InvalidInput with every mistake.
func (o *Options) Read(ctx context.Context, args []string) error {
	if err := step.Arguments(0, 1, "one cluster file or none")(nil, args); err != nil {
		return err
	}
	file, name, fileErr := o.load(ctx, args)
	var problems []error
	if o.Attachments != "none" && o.Attachments != "copy" {
		problems = append(problems, fmt.Errorf("--attachments %q: want none or copy", o.Attachments))
	}
	if o.Request.Pool == "" {
		problems = append(problems, errors.New("the pool is empty: want the name of a MachineConfigPool, as in worker"))
	}
	o.Request.Cluster, o.Request.ClusterFile = file, name
	o.Request.Namespace, o.Request.CopyAttachments = o.Kube.Namespace, o.Attachments == "copy"
	o.Request = o.Request.WithDefaults()
	if fileErr == nil {
		problems = append(problems, o.Request.Validate())
	}
	if err := errors.Join(append(problems, fileErr)...); err != nil {
		return fail.Because(fail.InvalidInput, err)
	}
	return nil
}

// load reads the cluster file, and names it for commands that users paste.
func (o *Options) load(ctx context.Context, args []string) (file cluster.File, name string, err error) {
	if len(args) == 1 {
		file, err = clusterfile.Load(ctx, args[0], o.Kube)
		return file, args[0], err
	}
	clients, err := o.Kube.Connect()
	if err != nil {
		return file, "", err
	}
	file, err = clusterfile.LoadInstalled(ctx, clients, "")
	if err != nil {
		return file, "", fail.Advise(err,
			"name a cluster file, as in mlenv admin clusters/cairo.yaml, or the namespace in which one is installed, with -n")
	}
	o.Kube.Namespace = clients.Namespace
	return file, "clusters/" + file.Cluster.Name + ".yaml", nil
}

func (o *Options) connect(ctx context.Context, warnings io.Writer) (*kube.Clients, error) {
	return install.Connect(ctx, warnings, o.Kube, o.Request.Cluster.Cluster)
}

// Print prints the objects and commands.
func (o *Options) Print(ctx context.Context, out, warnings io.Writer) error {
	clients := &kube.Clients{}
	if o.Request.CopyAttachments {
		var err error
		if clients, err = o.connect(ctx, warnings); err != nil {
			return err
		}
	}
	plan, err := planWithCopies(ctx, clients.Objects, o.Request)
	if err != nil {
		return err
	}
	if o.Output.Is(step.YAML) {
		printWarnings(warnings, plan.Warnings)
		return plan.printYAML(out)
	}
	return o.Output.Print(out, plan, plan.Print)
}

func printWarnings(w io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(w, "warning:", warning)
	}
}

// Apply applies the objects.
func (o *Options) Apply(ctx context.Context, out, warnings io.Writer) error {
	clients, err := o.connect(ctx, warnings)
	if err != nil {
		return err
	}
	changes := []install.Change{}
	say := func(line string) { fmt.Fprintln(warnings, line) }
	plan, err := Apply(ctx, clients, o.Request, say, func(change install.Change) {
		changes = append(changes, change)
		if o.Output.ForPeople() {
			fmt.Fprintln(out, change.Object, change.Outcome)
		}
	})
	switch {
	case !o.Output.ForPeople() && len(changes) > 0:
		return errors.Join(step.WriteJSON(out, map[string]any{"changes": changes, "warnings": plan.Warnings}), err)
	case err == nil && o.Output.ForPeople():
		printNext(out, o.Request, changes, plan.Warnings)
	}
	return err
}

func printNext(out io.Writer, r Request, changes []install.Change, warnings []string) {
	printWarnings(out, warnings)
	if !slices.ContainsFunc(changes, func(change install.Change) bool { return change.Outcome != install.Unchanged }) {
		fmt.Fprintln(out, "nothing was changed: everything is in place already")
		return
	}
	status := fmt.Sprintf("mlenv admin status %s -n %s --service-account=%s", r.ClusterFile, r.Namespace, r.ServiceAccount)
	if r.SCC != "" {
		status += " --scc=" + r.SCC
	}
	if r.Reboot {
		fmt.Fprintf(out, "\nthe nodes of pool %s that lack a MachineConfig reboot now, one after the other\n", r.Pool)
		status += " --pool=" + r.Pool
	}
	fmt.Fprintf(out, "\nto see what is in place and how far the nodes are: %s\n", status)
}

// Status shows what is in place, and follows a roll-out for that long.
func (o *Options) Status(ctx context.Context, out, progress io.Writer, timeout time.Duration) error {
	clients, err := o.connect(ctx, progress)
	if err != nil {
		return err
	}
	status, err := Look(ctx, clients, o.Request)
	if err != nil {
		return err
	}
	if o.Output.ForPeople() {
		progress = out
		status.print(out)
	}
	var followErr error
	if status.rolling() && timeout > 0 {
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not all nodes are updated after %s", timeout))
		defer cancel()
		*status.Pool, followErr = Follow(ctx, clients, *status.Pool, status.configs, func(line string) { fmt.Fprintln(progress, line) })
	} else if status.Pool != nil && o.Output.ForPeople() {
		fmt.Fprintln(out, *status.Pool)
	}
	// The text was printed before the roll-out, whose progress follows it.
	if err := o.Output.Print(out, status, func(io.Writer) error { return nil }); err != nil {
		return err
	}
	if followErr == nil && !status.complete() {
		return &step.Exit{Code: step.Failed}
	}
	return followErr
}
