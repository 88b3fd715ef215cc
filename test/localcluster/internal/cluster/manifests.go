// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

//go:embed manifests/*.yaml
var ownManifests embed.FS

// tekton is a part of Tekton. Its module has the manifests in config/, with the packages of its programs in place of
// images.
type tekton struct {
	module string
	// set is the set of its programs. The names of their images begin with its name.
	set build.Set
	// oldNew are texts of the manifests and their replacements.
	oldNew []string
}

const pipelineModule = "github.com/tektoncd/pipeline"

var (
	pipelines       = tekton{module: pipelineModule, set: build.Tekton}
	newestPipelines = tekton{module: pipelineModule, set: build.NewestTekton}
	triggers        = tekton{module: "github.com/tektoncd/triggers", set: build.Triggers, oldNew: []string{
		// OpenShift Pipelines' operator sets this too: the user of an EventListener's pod must come from the range of
		// its namespace, and the fixed user is outside of it.
		"-el-security-context=true", "-el-security-context=false",
		// Tekton only logs why an event starts nothing, at this level. loglevel.eventlistener does not apply to
		// EventListeners.
		`"level": "info"`, `"level": "debug"`,
	}}
)

const (
	openshiftModule   = "github.com/openshift/api"
	attachmentModule  = "github.com/k8snetworkplumbingwg/network-attachment-definition-client"
	jobsetModule      = "sigs.k8s.io/jobset"
	trainerModule     = "github.com/kubeflow/trainer/v2"
	mpiModule         = "github.com/kubeflow/mpi-operator"
	kueueModule       = "sigs.k8s.io/kueue"
	whereaboutsModule = "github.com/k8snetworkplumbingwg/whereabouts"
)

// moduleKinds are the files of modules that define kinds: SecurityContextConstraints and Routes, attachments and
// address pools.
var moduleKinds = []struct{ module, file string }{
	{openshiftModule, "security/v1/zz_generated.crd-manifests/0000_03_config-operator_01_securitycontextconstraints.crd.yaml"},
	{openshiftModule, "config/v1/zz_generated.crd-manifests/0000_10_config-operator_01_infrastructures-Default.crd.yaml"},
	{openshiftModule, "route/v1/zz_generated.crd-manifests/routes.crd.yaml"},
	{attachmentModule, "artifacts/networks-crd.yaml"},
	{whereaboutsModule, "doc/crds/whereabouts.cni.cncf.io_ippools.yaml"},
	{whereaboutsModule, "doc/crds/whereabouts.cni.cncf.io_overlappingrangeipreservations.yaml"},
}

// render returns all manifests for a new cluster in order: the modules' definitions, the cluster's own objects, then
// Tekton's. modules are the folders of the modules' sources, by module path.
func render(images map[string]string, ca []byte, caBundle string, modules map[string]string) (string, error) {
	values := []string{
		"@CONTROL_IP@", topology.ControlIP, "@GIT_HOST@", topology.GitHost, "@DOMAIN@", topology.Domain,
		"@DNS_IP@", topology.DNSServiceIP, "@ADMISSION@", topology.AdmissionAddress, "@BUILD_API_PORT@", port(topology.BuildAPIAddress),
		"@IMAGE_COREDNS@", images["coredns"], "@CA@", base64.StdEncoding.EncodeToString(ca),
	}
	var documents []string
	for _, k := range moduleKinds {
		content, err := os.ReadFile(filepath.Join(modules[k.module], k.file))
		if err != nil {
			return "", err
		}
		documents = append(documents, string(content))
	}
	files, err := fs.Glob(ownManifests, "manifests/*.yaml")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		content, err := ownManifests.ReadFile(f)
		if err != nil {
			return "", err
		}
		documents = append(documents, strings.NewReplacer(values...).Replace(string(content)))
	}
	for _, part := range []tekton{pipelines, newestPipelines, triggers} {
		if modules[part.module] == "" || images[part.set.Name+"/controller"] == "" {
			continue // not asked for
		}
		manifests, err := part.render(images, modules[part.module])
		if err != nil {
			return "", err
		}
		documents = append(documents, manifests...)
	}
	for _, part := range []struct {
		module string
		render func(module string, images map[string]string) (string, error)
	}{{kueueModule, renderKueue}, {jobsetModule, renderJobSet}, {trainerModule, renderTrainer}, {mpiModule, renderMPI}} {
		if modules[part.module] == "" {
			continue
		}
		manifests, err := part.render(modules[part.module], images)
		if err != nil {
			return "", fmt.Errorf("reading the manifests of %s: %w", part.module, err)
		}
		documents = append(documents, manifests)
	}
	certificates, err := json.Marshal(caBundle)
	if err != nil {
		return "", err
	}
	if modules[pipelineModule] == "" {
		return strings.Join(documents, separator), nil
	}
	// Tekton trusts additional certificates in this ConfigMap. It must come after Tekton's empty ConfigMap of the same
	// name.
	for _, namespace := range []string{"tekton-pipelines", "tekton-pipelines-resolvers"} {
		documents = append(documents, fmt.Sprintf(
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-registry-cert, namespace: %s}\ndata: {cert: %s}\n", namespace, certificates))
	}
	return strings.Join(documents, separator), nil
}

// kueueFrameworks matches the frameworks of Kueue's configuration with which Kueue admits the pods of StatefulSets. Before
// 0.16 they are in comments.
var kueueFrameworks = regexp.MustCompile(`(?m)^( *)(?:# {1,2}|  )- ("pod"|"statefulset").*$`)

// renderKueue returns the manifests of Kueue's module, and enables the frameworks for StatefulSets.
func renderKueue(module string, images map[string]string) (string, error) {
	content, err := kustomize(filepath.Join(module, "config", "default"), images["kueue/kueue"])
	if err != nil {
		return "", err
	}
	if n := len(kueueFrameworks.FindAllString(content, -1)); n != 2 {
		return "", fmt.Errorf("want the frameworks pod and statefulset, found %d of them", n)
	}
	return kueueFrameworks.ReplaceAllString(content, "$1  - $2"), nil
}

func renderJobSet(module string, images map[string]string) (string, error) {
	return kustomize(filepath.Join(module, "config", "default"), images["peers/jobset"])
}

// renderTrainer returns Trainer's manifests without JobSet, which they would fetch.
func renderTrainer(module string, images map[string]string) (string, error) {
	work, err := os.MkdirTemp("", "trainer-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, os.DirFS(filepath.Join(module, "manifests"))); err != nil {
		return "", err
	}
	overlay := filepath.Join(work, "overlays", "manager")
	file := filepath.Join(overlay, "kustomization.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	jobset := regexp.MustCompile(`(?m)^  - \.\./\.\./third-party/jobset.*\n`)
	if err := os.WriteFile(file, jobset.ReplaceAll(content, nil), 0o644); err != nil {
		return "", err
	}
	return kustomize(overlay, images["peers/trainer-controller-manager"])
}

func renderMPI(module string, images map[string]string) (string, error) {
	return kustomize(filepath.Join(module, "manifests", "overlays", "standalone"), images["mpi/mpi-operator"])
}

// managerImage matches the image in the manifests of a project with one program.
var managerImage = regexp.MustCompile(`(?m)^( +(?:- )?image: )\S+$`)

// kustomize renders a folder, and replaces its only image with the given one.
func kustomize(folder, reference string) (string, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // namespaces first
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return "", err
	}
	content, err := objects.AsYaml()
	if err != nil {
		return "", err
	}
	if n := len(managerImage.FindAll(content, -1)); n != 1 {
		return "", fmt.Errorf("want one image, found %d", n)
	}
	return string(managerImage.ReplaceAll(content, []byte("${1}"+reference))), nil
}

// port returns the port of an address.
func port(address string) string {
	_, p, _ := strings.Cut(address, ":")
	return p
}

// render returns the manifests of the module in the folder, whose name ends with the version, with this cluster's images, and
// with the version instead of "devel".
func (t tekton) render(images map[string]string, folder string) ([]string, error) {
	config := filepath.Join(folder, "config")
	_, version, _ := strings.Cut(filepath.Base(folder), "@")
	koImage := regexp.MustCompile(`ko://` + regexp.QuoteMeta(t.module) + `/cmd/([a-z]+)`)
	changes := strings.NewReplacer(append([]string{`"devel"`, `"` + version + `"`, ": devel", ": " + version}, t.oldNew...)...)
	var documents []string
	for _, dir := range []string{config, filepath.Join(config, "resolvers")} {
		var files []string
		for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		// Sort by the path below dir, because the numbers in the names define the order.
		sort.Strings(files)
		for _, file := range files {
			rel := strings.TrimPrefix(file, dir+"/")
			if strings.HasPrefix(rel, "resolvers/") || rel == "webhook-hpa.yaml" || rel == "config-registry-cert.yaml" {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			var missing error
			text := koImage.ReplaceAllStringFunc(string(content), func(match string) string {
				name := koImage.FindStringSubmatch(match)[1]
				if images[t.set.Name+"/"+name] == "" {
					missing = fmt.Errorf("%s requires an image of cmd/%s, which is not built", file, name)
				}
				return images[t.set.Name+"/"+name]
			})
			if missing != nil {
				return nil, missing
			}
			documents = append(documents, changes.Replace(text))
		}
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("reading Tekton's manifests: %s contains none", config)
	}
	return documents, nil
}

// manifestModules returns the folders of the modules with the manifests, by module path. source is the folder of the
// localcluster module.
func manifestModules(ctx context.Context, source string, options Options) (map[string]string, error) {
	modules, err := moduleFolders(ctx, filepath.Join(source, "tools"), attachmentModule, whereaboutsModule)
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		wanted  bool
		set     build.Set
		modules []string
	}{
		{!options.NoTekton, options.tekton(), []string{pipelineModule}},
		{options.Triggers, build.Triggers, []string{triggers.module}},
		{options.Kueue != "", build.Kueue(options.Kueue), []string{kueueModule}},
		{options.Peers, build.Peers, []string{jobsetModule, trainerModule}},
		{options.Peers, build.MPI, []string{mpiModule}},
	} {
		if !part.wanted {
			continue
		}
		more, err := moduleFolders(ctx, filepath.Join(source, part.set.Module), part.modules...)
		if err != nil {
			return nil, err
		}
		maps.Copy(modules, more)
	}
	openshift, err := moduleFolders(ctx, source, openshiftModule)
	maps.Copy(modules, openshift)
	return modules, err
}

// moduleFolders returns the folders of the modules' sources, by module path, in the versions of the go.mod in the
// folder from.
func moduleFolders(ctx context.Context, from string, modules ...string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"mod", "download", "-json"}, modules...)...)
	cmd.Dir = from
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("finding the modules %s: %w: %s", strings.Join(modules, " "), err, out)
	}
	folders := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var module struct{ Path, Dir string }
		if err := decoder.Decode(&module); err != nil {
			return nil, err
		}
		folders[module.Path] = module.Dir
	}
	return folders, nil
}
