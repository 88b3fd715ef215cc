// SPDX-License-Identifier: Apache-2.0

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Options are the installation, and how to report it.
type Options struct {
	// Request is completed by the cluster file at Path. Its StepsImage may be by tag, or "" for the one of Find.
	Request
	Path string
	// Flags choose the cluster, and the namespace unless the cluster file names it.
	Flags  kube.Flags
	DryRun bool
	Output command.OutputFlag
	Carry  Carry
	Find   Find
}

// Find returns the steps image of an installation that names none, and builds it if necessary. With dryRun it builds nothing, and returns
// the image that it would build.
type Find func(ctx context.Context, clients *kube.Clients, file cluster.File, dryRun bool) (image string, err error)

// Carry renders the objects of the namespace that another command created and that use the steps image, such as
// schedules, with a new image.
type Carry func(ctx context.Context, client dynamic.Interface, namespace, image string) ([]*unstructured.Unstructured, error)

// Run installs, or prints the objects. files has tasks/ and pipelines/.
func Run(ctx context.Context, out, warnings io.Writer, files fs.FS, o Options) error {
	request := o.Request
	var err error
	if request.ClusterFile, request.Cluster, err = clusterfile.Read(o.Path); err != nil {
		return err
	}
	request.Namespace = cmp.Or(o.Flags.Namespace, request.Cluster.Cluster.Namespace)
	prints := o.Output.Is(command.YAML)
	switch {
	case o.StepsImage != "":
		if request.StepsImage, err = byDigest(ctx, o.StepsImage); err != nil {
			return err
		}
	case prints:
		return fail.Becausef(fail.InvalidInput, "--output=yaml connects to no cluster, which would build the steps image: want "+
			"--steps-image=IMAGE")
	}
	if prints {
		objects, err := Render(request, files)
		if err != nil {
			return err
		}
		return command.WriteObjects(out, objects)
	}
	clients, err := Connect(ctx, warnings, o.Flags, request.Cluster.Cluster)
	if err != nil {
		return err
	}
	clients.Namespace = request.Namespace
	request.Beside = slices.DeleteFunc(filesIn(ctx, clients, request.Namespace), func(f cluster.File) bool {
		return f.Cluster.Name == request.Cluster.Cluster.Name
	})
	install := func(dryRun bool) (Report, error) {
		objects, err := Render(request, files)
		if err != nil {
			return Report{}, err
		}
		carried, err := o.Carry(ctx, clients.Objects, request.Namespace, request.StepsImage)
		if err != nil {
			return Report{}, err
		}
		return Install(ctx, clients, request.Namespace, append(objects, carried...), dryRun, func(line string) { fmt.Fprintln(warnings, line) })
	}
	if request.StepsImage == "" {
		if request.StepsImage, err = o.Find(ctx, clients, request.Cluster, true); err != nil {
			return err
		}
		if !o.DryRun {
			// No image is built for an installation that would be refused.
			if _, err := install(true); err != nil {
				return err
			}
			if request.StepsImage, err = o.Find(ctx, clients, request.Cluster, false); err != nil {
				return err
			}
		}
	}
	report, err := install(o.DryRun)
	// After an error the report has the changes before it.
	if printErr := o.Output.Print(out, report, report.Print); err == nil {
		err = printErr
	}
	if err == nil && o.Output.ForPeople() && !o.DryRun {
		printNext(out, request)
	}
	return err
}

// Print writes the report as text: a line for each object, and its diff below.
func (r Report) Print(out io.Writer) error {
	for _, change := range r.Changes {
		fmt.Fprintf(out, "%s %s\n", change.Object, change.Outcome)
		if r.DryRun {
			fmt.Fprint(out, change.Diff)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(out, "note:", note)
	}
	if r.DryRun {
		fmt.Fprintln(out, "nothing was changed: this was a dry run")
	}
	return nil
}

// Connect makes the clients of the file's cluster. If it cannot find out which cluster this is, it prints a warning.
func Connect(ctx context.Context, warnings io.Writer, flags kube.Flags, file cluster.Cluster) (*kube.Clients, error) {
	clients, err := flags.Connect()
	if err != nil {
		return nil, err
	}
	err = kube.CheckCluster(ctx, clients.Config, file.API)
	if errors.Is(err, kube.ErrClusterUnknown) {
		fmt.Fprintf(warnings, "warning: %v; assuming %s\n", err, file.Name)
		err = nil
	}
	return clients, err
}

func printNext(out io.Writer, request Request) {
	fmt.Fprintf(out, `
to train in namespace %s of cluster %s:

  tkn pipeline start train-multi-node --namespace=%s --serviceaccount=%s \
    --param=repo-url=URL --param=script=train.py --use-param-defaults --showlog
`, request.Namespace, request.Cluster.Cluster.Name, request.Namespace, request.ServiceAccount)
}

// byDigest returns the image's reference with its digest, which it asks the registry for if necessary: neither the Tasks of a
// run nor the agents of an environment may change later.
func byDigest(ctx context.Context, image string) (string, error) {
	reference, err := name.ParseReference(image)
	if err != nil {
		return "", fail.Becausef(fail.InvalidInput, "reading --steps-image: %w", err)
	}
	if digest, ok := reference.(name.Digest); ok {
		return digest.Name(), nil
	}
	found, err := remote.Head(reference, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return "", fail.Advise(fail.Becausef(fail.ImageUnavailable, "asking for the digest of %s: %w", reference, err),
			"name it by digest, as make steps-image prints it: --steps-image=%s@sha256:...", reference.Context())
	}
	return reference.Context().Digest(found.Digest.String()).Name(), nil
}
