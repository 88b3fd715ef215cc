// SPDX-License-Identifier: Apache-2.0

// Package clusterfile reads the cluster file that a flag or a Task names.
package clusterfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// Load reads and checks the cluster file at path. A Task mounts it as optional from a ConfigMap that mlenv install
// creates. If it is missing in a pod, the error names the installed cluster files. Errors: InvalidInput with every mistake.
func Load(ctx context.Context, path string, flags kube.Flags) (cluster.File, error) {
	if path == "" {
		return cluster.File{}, fail.Becausef(fail.InvalidInput, "--cluster-file is missing: want a file as in clusters/")
	}
	_, file, err := Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = notInstalled(ctx, path, flags, err)
	}
	return file, err
}

// Read returns a cluster file and its text. Errors: InvalidInput with every mistake.
func Read(path string) ([]byte, cluster.File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, cluster.File{}, fail.Becausef(fail.InvalidInput, "reading the cluster file: %w", err)
	}
	file, err := parse(path, content)
	return content, file, err
}

func parse(name string, content []byte) (cluster.File, error) {
	file, err := cluster.Load(name, content)
	if err != nil {
		return cluster.File{}, fail.Because(fail.InvalidInput, err)
	}
	return file, nil
}

// Installed returns the text of every cluster file that is installed in the clients' namespace, by the name of its cluster.
func Installed(ctx context.Context, clients *kube.Clients) (map[string]string, error) {
	configs, err := clients.Kube.CoreV1().ConfigMaps(clients.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing configmaps in %s: %w", clients.Namespace, err))
	}
	installed := map[string]string{}
	for _, config := range configs.Items {
		if name, ok := strings.CutPrefix(config.Name, cluster.ConfigMapPrefix); ok {
			installed[name] = config.Data["cluster.yaml"]
		}
	}
	return installed, nil
}

// InstalledFiles returns the valid cluster files that are installed in the clients' namespace, sorted by name; none if they cannot be
// read.
func InstalledFiles(ctx context.Context, clients *kube.Clients) (files []cluster.File) {
	installed, err := Installed(ctx, clients)
	if err != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(installed)) {
		if file, err := parse(name, []byte(installed[name])); err == nil {
			files = append(files, file)
		}
	}
	return files
}

// LoadInstalled reads and checks the cluster file of that name that is installed in the clients' namespace; "" is the only
// one. Errors: InvalidInput.
func LoadInstalled(ctx context.Context, clients *kube.Clients, name string) (cluster.File, error) {
	installed, err := Installed(ctx, clients)
	if err != nil {
		return cluster.File{}, err
	}
	names := slices.Sorted(maps.Keys(installed))
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	if content, ok := installed[name]; ok {
		return parse(cluster.ConfigMapPrefix+name, []byte(content))
	}
	wanted := "the cluster file"
	if name != "" {
		wanted = "cluster file " + name
	}
	return cluster.File{},
		fail.Advise(fail.Becausef(fail.InvalidInput, "looking for %s in namespace %s: installed are: %s", wanted, clients.Namespace,
			cmp.Or(strings.Join(names, ", "), "none")),
			"name one with --cluster=NAME or --cluster-file=FILE, or install one: mlenv install FILE -n %s", clients.Namespace)
}

func notInstalled(ctx context.Context, path string, flags kube.Flags, err error) error {
	clients, connectErr := flags.Connect()
	if connectErr != nil || !clients.InCluster {
		return err
	}
	installed := "which are is not known"
	if found, err := Installed(ctx, clients); err == nil {
		installed = "installed are: " + cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), ", "), "none")
	}
	name := filepath.Base(filepath.Dir(path))
	return fail.Advise(fail.Becausef(fail.InvalidInput, "%w: cluster %q is not installed in namespace %s; %s", err, name, clients.Namespace,
		installed),
		"mlenv install clusters/%s.yaml -n %s, or correct the param cluster", name, clients.Namespace)
}
