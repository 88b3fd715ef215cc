// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/clusterfile"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Options are the request and the flags that it is made of.
type Options struct {
	Kube    kube.Flags
	Request Request
	// Attachments is none, or copy for copies of the file's network attachments in the namespace.
	Attachments string
}

// Read completes the request by the cluster file, the only argument, or else by the only one that is installed in the namespace. Errors:
// InvalidInput with every mistake.
func (o *Options) Read(ctx context.Context, args []string) error {
	if err := command.Arguments(0, 1, "one cluster file or none")(nil, args); err != nil {
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

// Print prints the manifests. It connects to the cluster only to read the attachments to copy.
func (o *Options) Print(ctx context.Context, out, warnings io.Writer) error {
	var client dynamic.Interface
	if o.Request.CopyAttachments {
		clients, err := install.Connect(ctx, warnings, o.Kube, o.Request.Cluster.Cluster)
		if err != nil {
			return err
		}
		client = clients.Objects
	}
	p, err := withCopies(ctx, client, o.Request)
	if err != nil {
		return err
	}
	p.print(out)
	return nil
}

// withCopies plans the request, with copies of the cluster's attachments if it asks for them.
func withCopies(ctx context.Context, client dynamic.Interface, r Request) (plan, error) {
	if !r.CopyAttachments {
		return newPlan(r, nil, nil)
	}
	originals, definitions, err := r.attachments(ctx, client)
	if err != nil {
		return plan{}, err
	}
	var copies []*unstructured.Unstructured
	for _, original := range originals {
		copies = append(copies, copyTo(r.Namespace, original))
	}
	return newPlan(r, copies, r.warnings(definitions))
}
