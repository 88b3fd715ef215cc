// SPDX-License-Identifier: Apache-2.0

// Package build compiles the cluster's components from their modules, once per version of their sources.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Set is a set of programs that one `go build` compiles from one module.
type Set struct {
	Name string
	// Version tells sets with the same name apart, of which the cache keeps each.
	Version string
	// Module is the module's folder, relative to the localcluster module's.
	Module string
	// Packages are the package arguments of `go build`.
	Packages []string
	// Sources are folders of this module that the packages import from.
	Sources []string
	// Variables are set by the linker. They contain the version of Kubernetes' programs, because other programs refuse
	// a server without a version.
	Variables []string
	// Usually is how long the build takes on two cores if nothing of it was built before; 0 for a short one.
	Usually time.Duration
}

// base returns the beginning of the names of the set's folders in the cache.
func (s Set) base() string { return strings.TrimSuffix(s.Name+"-"+s.Version, "-") }

// Sets are the programs that every cluster runs and that Go builds. Module tools and the project's own module require
// the same versions of what both import, so that it is compiled once.
var Sets = []Set{
	{Name: "kubernetes", Module: ".", Packages: []string{"./cmd/kube", "./cmd/etcd"}, Variables: kubernetesVersion(),
		Usually: 5 * time.Minute},
	{Name: "openshift", Module: ".", Packages: []string{"./cmd/openshift-apiserver", "./cmd/openshift-builder"},
		Sources:   []string{"internal/buildapi", "internal/buildcontroller", "internal/builder", "internal/buildstatus"},
		Variables: kubernetesVersion()},
	{Name: "sriov", Module: ".", Packages: []string{"./cmd/sriov"}, Sources: []string{"internal/rdma", "internal/rdma/cni", "internal/gpu",
		"internal/topology"}},
	{Name: "in-pod", Module: ".", Packages: []string{"./cmd/coredns", "./cmd/pause", "./cmd/nvidia-smi", "./cmd/ib_write_bw"},
		Sources: []string{"internal/gpu", "internal/perftest", "internal/rdma"}},
}

// Networks is Multus and Whereabouts. The package of Whereabouts' command is named cmd, and so is its program.
var Networks = Set{Name: "networks", Module: "tools", Packages: []string{
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus", "github.com/k8snetworkplumbingwg/whereabouts/cmd",
}}

// Tekton is the long-term release of Tekton Pipelines that requires the client-go of this Kubernetes. NewestTekton is the newest
// release, which a cluster can run in its place.
var (
	Tekton = Set{Name: "tekton", Module: "tools", Packages: commands("github.com/tektoncd/pipeline", TektonPrograms),
		Usually: 90 * time.Second}
	NewestTekton = Set{Name: "newest-tekton", Module: "tools/newest", Packages: commands("github.com/tektoncd/pipeline", TektonPrograms)}
)

// Tkn is Tekton's command line.
var Tkn = Set{Name: "tkn", Module: "tools", Packages: []string{"./tkn"}, Variables: []string{
	"github.com/tektoncd/cli/pkg/cmd/version.clientVersion=0.44.0",
}}

// Triggers is Tekton Triggers.
var Triggers = Set{Name: "triggers", Module: "tools", Packages: commands("github.com/tektoncd/triggers", TriggersPrograms)}

// Kueue is a queue for workloads. It has modules of its own, because its other integrations require many modules that
// nothing else requires.
func Kueue(version string) Set {
	return Set{Name: KueueName, Version: version, Module: "tools/kueue-" + version, Packages: []string{"sigs.k8s.io/kueue/cmd/kueue"}}
}

// KueueName is the name of every version's set.
const KueueName = "kueue"

// KueueVersions are versions that differ in how they mark pods, as internal/kube/kueue describes. The first is the default.
var KueueVersions = []string{"v0.14.8", "v0.17.0", "v0.19.2"}

// Peers and MPI are other projects that train. A benchmark compares ml-dev-env with them: Kubeflow Trainer with JobSet,
// and MPI Operator, whose modules require another client-go.
var (
	Peers = Set{Name: "peers", Module: "tools/peers", Packages: []string{"github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
		"sigs.k8s.io/jobset"}}
	MPI = Set{Name: "mpi", Module: "tools/mpi", Packages: []string{"github.com/kubeflow/mpi-operator/cmd/mpi-operator"}}
)

// TektonPrograms and TriggersPrograms are the commands that the manifests of Tekton
// Pipelines and Tekton Triggers name.
var (
	TektonPrograms   = []string{"controller", "webhook", "resolvers", "events", "entrypoint", "nop", "workingdirinit", "sidecarlogresults"}
	TriggersPrograms = []string{"controller", "webhook", "interceptors", "eventlistenersink"}
)

// commands returns the packages of a module's programs.
func commands(module string, programs []string) []string {
	var packages []string
	for _, p := range programs {
		packages = append(packages, module+"/cmd/"+p)
	}
	return packages
}

func kubernetesVersion() []string {
	return []string{
		"k8s.io/component-base/version.gitVersion=v1.34.9",
		"k8s.io/component-base/version.gitMajor=1",
		"k8s.io/component-base/version.gitMinor=34",
		"k8s.io/component-base/version.gitCommit=unknown",
		"k8s.io/component-base/version.gitTreeState=clean",
	}
}

// Builder compiles sets into a cache folder.
type Builder struct {
	// Source is the folder of the localcluster module.
	Source string
	Cache  string
}

// Folder returns the folder of the set's programs. It may not exist yet. Its name changes with the compiler, and with
// the versions and sources that the programs are built from.
func (b Builder) Folder(set Set) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH, set.Packages, set.Variables)
	module := filepath.Join(b.Source, set.Module)
	files := []string{"go.mod", "go.sum"}
	for _, p := range append(slices.Clone(set.Packages), set.Sources...) {
		sources, err := filepath.Glob(filepath.Join(module, p, "*.go"))
		if err != nil {
			return "", err
		}
		for _, s := range sources {
			rel, err := filepath.Rel(module, s)
			if err != nil {
				return "", err
			}
			files = append(files, rel)
		}
	}
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", fmt.Errorf("reading the sources of %s: %w", set.Name, err)
		}
		fmt.Fprintf(hash, "%s %x\n", file, sha256.Sum256(content))
	}
	return filepath.Join(b.Cache, "bin", set.base()+"-"+hex.EncodeToString(hash.Sum(nil))[:12]), nil
}

// Build compiles the set unless the cache has it, and returns its folder. It writes the compiler's messages to log.
func (b Builder) Build(ctx context.Context, set Set, log io.Writer) (folder string, err error) {
	folder, err = b.Folder(set)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(folder), ".building-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	linker := "-ldflags=-s -w"
	for _, v := range set.Variables {
		linker += " -X " + v
	}
	args := append([]string{"build", "-trimpath", linker, "-o", temp + "/"}, set.Packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.Source, set.Module)
	// Static programs also run in images that contain nothing else, and need no C compiler.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly -buildvcs=false -gcflags=all=-dwarf=false", "GOWORK=off", "CGO_ENABLED=0",
		// Collecting less garbage saves the compilers 8% of their processor time.
		"GOGC=400")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, &said), io.MultiWriter(log, &said)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", set.Name, err, lastLines(said.String(), 15))
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	if err := b.dropOlder(set); err != nil {
		return "", err
	}
	return folder, os.Rename(temp, folder)
}

// dropOlder removes the programs that were built from earlier versions of the set's sources.
func (b Builder) dropOlder(set Set) error {
	older, err := filepath.Glob(filepath.Join(b.Cache, "bin", set.base()+"-????????????"))
	if err != nil {
		return err
	}
	for _, o := range older {
		if err := os.RemoveAll(o); err != nil {
			return err
		}
	}
	return nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// FindSource returns the folder of the localcluster module, which is at or above the working folder, or next to the
// running program.
func FindSource() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			candidate := filepath.Join(dir, "test", "localcluster")
			if _, err := os.Stat(filepath.Join(candidate, "cmd", "kube", "main.go")); err == nil {
				return candidate, nil
			}
			if dir == "/" {
				break
			}
		}
	}
	return "", fmt.Errorf("the project's sources are not found above %s; run this inside a checkout of ml-dev-env",
		strings.Join(starts, " or "))
}
