package action

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// inputsVariable has all inputs as one JSON object: names of inputs have hyphens,
// which not every shell hands on in the names of variables.
const inputsVariable = "MLENV_INPUTS"

// Inputs that are not params of the pipeline.
const (
	serverInput      = "server"
	tokenInput       = "token"
	authorityInput   = "certificate-authority"
	kubeconfigInput  = "kubeconfig"
	namespaceInput   = "namespace"
	accountInput     = "service-account"
	clusterFileInput = "cluster-file"
	versionInput     = "version"
)

// ownInputs are all of them, in the order of action.yml.
func ownInputs() []string {
	return []string{serverInput, tokenInput, authorityInput, kubeconfigInput, namespaceInput, accountInput, clusterFileInput, versionInput}
}

// inputs are those that were given; an empty one was not.
type inputs map[string]string

// readInputs reads them from the environment of a runner's step.
func readInputs(getenv func(string) string) (inputs, error) {
	var all inputs
	if err := json.Unmarshal([]byte(getenv(inputsVariable)), &all); err != nil {
		return nil, fail.Becausef(fail.InvalidInput, "reading the action's inputs from $%s: %w: want a JSON object of strings, as action.yml makes it", inputsVariable, err)
	}
	maps.DeleteFunc(all, func(_, value string) bool { return strings.TrimSpace(value) == "" })
	return all, nil
}

// secrets are the parts of the inputs that no log may show.
func (in inputs) secrets() []string {
	secrets := []string{in[tokenInput]}
	// What is no kubeconfig is said when it is used.
	if config, err := clientcmd.Load([]byte(in[kubeconfigInput])); err == nil {
		for _, user := range config.AuthInfos {
			secrets = append(secrets, user.Token, user.Password, string(user.ClientKeyData))
		}
	}
	return slices.DeleteFunc(secrets, func(secret string) bool { return secret == "" })
}

// wanted is what the inputs ask for.
type wanted struct {
	config    *rest.Config
	namespace string
	account   string
	// params are given to the pipeline as they are; launch checks them against it.
	params map[string]string
	// clusterProblems are mistakes in the cluster file.
	clusterProblems cluster.Problems
}

// wanted reads the inputs, for a workflow that runs in getenv. Errors: InvalidInput
// with every mistake.
func (in inputs) wanted(getenv func(string) string) (w wanted, err error) {
	var problems []error
	say := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	w = wanted{account: cmp.Or(in[accountInput], launch.ServiceAccount), params: maps.Clone(in)}
	for _, name := range ownInputs() {
		delete(w.params, name)
	}
	var contextNamespace string
	switch {
	case in[kubeconfigInput] != "" && in[serverInput] != "":
		say("inputs kubeconfig and server: both are given: want one of them")
	case in[kubeconfigInput] != "":
		if w.config, contextNamespace, err = fromKubeconfig(in[kubeconfigInput]); err != nil {
			say("input kubeconfig: %w: want the content of a kubeconfig", err)
		}
	case in[serverInput] == "":
		say("inputs server and kubeconfig: neither is given: want the API server's URL and a token, or a kubeconfig")
	default:
		// Without a scheme the client would take http, and send the token in the clear.
		if !strings.HasPrefix(in[serverInput], "https://") {
			say("input server %q: want a URL as https://api.example.com:6443", in[serverInput])
		}
		if in[tokenInput] == "" {
			say("input token: it is empty: want a token for %s; a secret of the repository, as forks do not get it?", in[serverInput])
		}
		w.config = &rest.Config{Host: in[serverInput], BearerToken: in[tokenInput], TLSClientConfig: rest.TLSClientConfig{CAData: []byte(in[authorityInput])}}
	}
	if path := in[clusterFileInput]; path != "" {
		file, err := readClusterFile(filepath.Join(getenv("GITHUB_WORKSPACE"), path), path)
		if err != nil && !errors.As(err, &w.clusterProblems) {
			say("input cluster-file: %w", err)
		} else if err != nil {
			say("input cluster-file: %s:\n%w", humanize.Count(len(w.clusterProblems), "mistake"), err)
		}
		w.namespace = file.Cluster.Namespace
		if file.Cluster.Name != "" {
			w.params["cluster"] = cmp.Or(w.params["cluster"], file.Cluster.Name)
		}
	}
	w.namespace = cmp.Or(in[namespaceInput], w.namespace, contextNamespace)
	if w.namespace == "" && len(problems) == 0 {
		say("input namespace: it is empty, and neither a cluster file nor a kubeconfig names one: want the namespace that mlenv install was run for")
	}
	w.checkedOut(getenv)
	if len(problems) > 0 {
		return w, fail.Because(fail.InvalidInput, errors.Join(problems...))
	}
	return w, nil
}

// checkedOut has the run train from the commit that the workflow runs for, where no
// other repository is asked for.
func (w *wanted) checkedOut(getenv func(string) string) {
	if w.params["repo-url"] != "" || getenv("GITHUB_REPOSITORY") == "" {
		return
	}
	w.params["repo-url"] = getenv("GITHUB_SERVER_URL") + "/" + getenv("GITHUB_REPOSITORY") + ".git"
	w.params["revision"] = cmp.Or(w.params["revision"], getenv("GITHUB_SHA"))
}

func fromKubeconfig(content string) (config *rest.Config, namespace string, err error) {
	client, err := clientcmd.NewClientConfigFromBytes([]byte(content))
	if err != nil {
		return nil, "", err
	}
	if config, err = client.ClientConfig(); err != nil {
		return nil, "", err
	}
	// Without one it is "default", which nobody asked for.
	raw, err := client.RawConfig()
	if err != nil {
		return nil, "", err
	}
	if current := raw.Contexts[raw.CurrentContext]; current != nil {
		namespace = current.Namespace
	}
	return config, namespace, nil
}

// readClusterFile reads a cluster file; its mistakes, cluster.Problems, call it name.
func readClusterFile(path, name string) (cluster.File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return cluster.File{}, err
	}
	return cluster.Load(name, content)
}
