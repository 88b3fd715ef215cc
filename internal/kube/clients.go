// SPDX-License-Identifier: Apache-2.0

// Package kube connects to a cluster: clients, server-side apply, watches, commands and connections in pods, and reasons for
// the API server's errors.
package kube

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Flags choose the cluster and the namespace, as kubectl's flags do.
type Flags struct {
	Namespace  string
	Kubeconfig string
	Context    string
}

// AddTo adds --namespace, --kubeconfig and --context.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	f.AddNamespace(flags, "namespace (default: the pod's own, or the kubeconfig's)")
}

// AddNamespace is AddTo for a command whose default namespace is another one, with the usage of --namespace.
func (f *Flags) AddNamespace(flags *pflag.FlagSet, use string) {
	flags.StringVarP(&f.Namespace, "namespace", "n", "", use)
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, in a pod its ServiceAccount, or ~/.kube/config)")
	flags.StringVar(&f.Context, "context", "", "context of the kubeconfig (default: its current one)")
}

// Arguments returns the flags, without --namespace, and the variable, "" if it is not set, that lead to the same cluster from another
// folder, and when the kubeconfig has another current context. Errors: InvalidInput.
func (f Flags) Arguments() (flags []string, variable string, err error) {
	const name = clientcmd.RecommendedConfigPathEnvVar
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	config, err := rules.Load()
	if err != nil {
		return nil, "", f.noConfig(err)
	}
	given := filepath.SplitList(os.Getenv(name))
	if f.Kubeconfig != "" {
		given = []string{f.Kubeconfig}
	}
	for i, path := range given {
		if given[i], err = filepath.Abs(path); err != nil {
			return nil, "", fail.Because(fail.InvalidInput, err)
		}
	}
	switch list := strings.Join(given, string(filepath.ListSeparator)); {
	case f.Kubeconfig != "":
		flags = append(flags, "--kubeconfig="+list)
	case list != "":
		variable = name + "=" + list
	}
	return append(flags, "--context="+cmp.Or(f.Context, config.CurrentContext)), variable, nil
}

// Clients talk to one cluster.
type Clients struct {
	Kube   kubernetes.Interface
	Tekton versioned.Interface
	// Objects reads and writes objects of any kind.
	Objects dynamic.Interface
	Config  *rest.Config
	// Namespace is the flag's, else the pod's or the kubeconfig's.
	Namespace string
	// InCluster is true in a pod that uses its ServiceAccount, which can connect to pods directly.
	InCluster bool

	clock *clock
}

// Connect makes the clients without a request to the API server. It prefers the kubeconfig of a flag or $KUBECONFIG, then a
// pod's ServiceAccount, then kubectl's default.
func (f Flags) Connect() (*Clients, error) {
	if problems := validation.IsDNS1123Label(f.Namespace); f.Namespace != "" && len(problems) > 0 {
		return nil, fail.Becausef(fail.InvalidInput, "--namespace %q: %s", f.Namespace, problems[0])
	}
	c, err := f.find()
	if err != nil {
		return nil, err
	}
	if f.Namespace != "" {
		c.Namespace = f.Namespace
	}
	return c, c.make()
}

// NewClients makes the clients for a configuration without a kubeconfig.
func NewClients(config *rest.Config, namespace string) (*Clients, error) {
	c := &Clients{Config: config, Namespace: namespace}
	return c, c.make()
}

// silenceKlog drops the lines that client-go logs by klog to standard error: this project reports what matters of them as
// errors. klog must not change while it is in use, so it changes once.
var silenceKlog = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

func (c *Clients) make() (err error) {
	silenceKlog()
	c.Config.QPS, c.Config.Burst = 50, 100 // client-go's default of 5 and 10 is too low for several watches
	c.Config.UserAgent = "ml-dev-env"
	// Not client-go's protobuf: the retrier compares what was sent with what the API server has.
	c.Config.ContentType = runtime.ContentTypeJSON
	c.clock = &clock{}
	c.Config.Wrap(retrying(c.InCluster))
	c.Config.Wrap(c.clock.watch)
	if c.Kube, err = kubernetes.NewForConfig(c.Config); err != nil {
		return fail.Becausef(fail.InvalidInput, "creating a client for %s: %w", c.Config.Host, err)
	}
	if c.Tekton, err = versioned.NewForConfig(c.Config); err != nil {
		return fail.Becausef(fail.InvalidInput, "creating a Tekton client for %s: %w", c.Config.Host, err)
	}
	if c.Objects, err = dynamic.NewForConfig(c.Config); err != nil {
		return fail.Becausef(fail.InvalidInput, "creating a client for %s: %w", c.Config.Host, err)
	}
	return nil
}

// NamespaceOf returns the flag's namespace, in a pod the pod's, otherwise the cluster file's if it names one.
func (f Flags) NamespaceOf(c *Clients, clusterFile string) string {
	if f.Namespace == "" && !c.InCluster {
		return cmp.Or(clusterFile, c.Namespace)
	}
	return c.Namespace
}

func (f Flags) find() (*Clients, error) {
	if f.Kubeconfig == "" && f.Context == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			return &Clients{Config: config, Namespace: podNamespace(), InCluster: true}, nil
		}
		// A pod without a mounted token may still have a kubeconfig.
		if !errors.Is(err, rest.ErrNotInCluster) && !errors.Is(err, os.ErrNotExist) {
			return nil, fail.Becausef(fail.InvalidInput, "reading the pod's ServiceAccount: %w", err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: f.Context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, f.noConfig(err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, f.noConfig(err)
	}
	return &Clients{Config: config, Namespace: namespace}, nil
}

func (f Flags) noConfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		looked := "~/.kube/config"
		if named := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); named != "" {
			looked = "$KUBECONFIG, which is " + named
		}
		looked = cmp.Or(f.Kubeconfig, looked)
		return fail.Advise(fail.Becausef(fail.InvalidInput, "looking for a cluster: found neither a pod's ServiceAccount nor a kubeconfig with "+
			"a cluster in %s", looked),
			"export KUBECONFIG=FILE, or log in: oc login https://API-SERVER:6443")
	}
	return fail.Advise(fail.Because(fail.InvalidInput, fmt.Errorf("reading the kubeconfig: %w", err)),
		"oc config get-contexts")
}

func podNamespace() string {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if namespace := strings.TrimSpace(string(data)); err == nil && namespace != "" {
		return namespace
	}
	return "default"
}
