// SPDX-License-Identifier: Apache-2.0

package cluster

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
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/build"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gitserver"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/pki"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma/cni"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rootfs"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Up starts the cluster that the options describe. It starts from nothing, a running cluster, or the remains of one.
func Up(ctx context.Context, options Options, extras Extras, out io.Writer) error {
	if err := options.Validate(); err != nil {
		return err
	}
	cacheDir, err := topology.CacheDir()
	if err != nil {
		return err
	}
	problems := host.Check(ctx)
	if _, err := os.Stat(optionsPath()); err != nil {
		// An existing cluster already has its share of the disk.
		problems = errors.Join(problems, host.CheckDisk(cacheDir, topology.StateDir))
	}
	if problems != nil {
		return fmt.Errorf("this machine cannot run the cluster:\n%w", problems)
	}
	unlock, err := lock(cacheDir)
	if err != nil {
		return err
	}
	defer unlock()

	p := &progress{out: out}
	u := &startup{options: options, extras: extras, cacheDir: cacheDir, progress: p}
	start := time.Now()
	if err := u.discardRemains(ctx); err != nil {
		return err
	}
	if err := u.run(ctx); err != nil {
		return err
	}
	if !u.changed {
		p.say("the cluster is up (%.1fs)", time.Since(start).Seconds())
		return nil
	}
	p.say("the cluster is up after %.1fs: %d nodes, %d GPUs each\n\n  export KUBECONFIG=%s DOCKER_CONFIG=%s\n  export PATH=%s:$PATH",
		time.Since(start).Seconds(), len(options.nodes()), options.GPUs, topology.Kubeconfig(), DockerConfig(), topology.State("bin"))
	return nil
}

// lock keeps two commands from changing the cluster at the same time.
func lock(cacheDir string) (unlock func(), err error) {
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(cacheDir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, errors.New("another localcluster command is at work on this cluster; wait for it or stop it")
	}
	return func() { f.Close() }, nil
}

type startup struct {
	options  Options
	extras   Extras
	cacheDir string
	progress *progress

	source string
	// programs are the folders of the compiled sets, by the name of the set.
	programs map[string]string
	store    *image.Store
	images   map[string]string
	plan     *plan
	caBundle string
	// changed reports whether up had to start or apply anything.
	changed bool
}

// discardRemains removes a cluster that up cannot repair: one from before a reboot, or without its network or
// authority.
func (u *startup) discardRemains(ctx context.Context) error {
	stored, ok, err := Stored()
	if err != nil {
		return err
	}
	if ok && stored.GPUs != u.options.GPUs {
		return fmt.Errorf("a cluster with %d GPUs a node is up, not with %d; run localcluster down first, or leave --gpus out", stored.GPUs,
			u.options.GPUs)
	}
	if _, err := os.Stat(topology.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if ok && stored.Kueue != "" && stored.Kueue != u.options.Kueue {
		return fmt.Errorf("a cluster with Kueue %s is up; run localcluster down first, or leave --kueue out", stored.Kueue)
	}
	if ok && stored.Peers && !u.options.Peers {
		return errors.New("a cluster with Kubeflow Trainer and MPI Operator is up; run localcluster down first, or leave --peers out")
	}
	if ok && stored.Triggers && !u.options.Triggers {
		return errors.New("a cluster with Tekton Triggers is up; run localcluster down first, or leave --triggers out")
	}
	if ok && stored.NewestTekton != u.options.NewestTekton {
		return errors.New("a cluster with another Tekton is up; run localcluster down first, or leave --newest-tekton as it was")
	}
	reason := remains(ok, stored)
	if reason == "" {
		return nil
	}
	return u.progress.stage("rebuilding: "+reason, func() error { return takeDown(ctx) })
}

// remains returns why the content of the state folder cannot be repaired, or "".
func remains(stored bool, options Options) string {
	if !stored {
		return "an up or down was cut off"
	}
	boot, err := host.BootID()
	if old, oldErr := os.ReadFile(bootPath()); err != nil || oldErr != nil || string(old) != boot {
		return "the machine was restarted"
	}
	for _, n := range append(options.nodes(), topology.Control(), topology.Fabric()) {
		if _, err := os.Stat(n.Path()); err != nil {
			return "network namespace " + n.SystemName() + " is gone"
		}
	}
	cgroups, err := host.DetectCgroups()
	if err != nil || !cgroups.Exists(process.SystemCgroup) {
		return "its cgroups are gone"
	}
	if _, err := os.Stat(topology.State("pki", "ca.key")); err != nil {
		return "its certificate authority is gone"
	}
	return ""
}

func bootPath() string { return topology.State("boot-id") }

func (u *startup) run(ctx context.Context) (err error) {
	if u.source, err = build.FindSource(); err != nil {
		return err
	}
	if err := u.compileAndAssemble(ctx); err != nil {
		return err
	}
	switch stored, ok, err := Stored(); {
	case err != nil:
		return err
	case !ok:
		if err := u.progress.stage("network and cgroups", func() error { return u.prepareHost(ctx) }); err != nil {
			return err
		}
	case !slices.Equal(stored.nodes(), u.options.nodes()):
		u.changed = true
		if err := u.resize(ctx, stored.nodes()); err != nil {
			return err
		}
	}
	if err := u.prepareFiles(ctx); err != nil {
		return err
	}
	return u.startAll(ctx)
}

// compileAndAssemble creates the programs and images that are not in the cache.
func (u *startup) compileAndAssemble(ctx context.Context) error {
	logDir := filepath.Join(u.cacheDir, "logs")
	work := filepath.Join(u.cacheDir, "work")
	// The remains of an interrupted command are useless.
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	for _, dir := range []string{logDir, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	defer os.RemoveAll(work)
	var err error
	if u.store, err = image.OpenStore(filepath.Join(u.cacheDir, "images")); err != nil {
		return err
	}
	// Downloading and unpacking root file systems waits for network and disk, so it runs in parallel with the compilers.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for _, i := range rootfsImages {
			if i.name == trainingImage && !u.extras.TrainingImage || i.name == peersImage && !u.options.Peers {
				continue
			}
			if err := u.assembleRootfs(ctx, work, logDir, i); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() error { return u.compile(ctx, logDir) })
	if err := group.Wait(); err != nil {
		return err
	}
	if u.images, err = assemblePrograms(u.store, work, programImages(u.programs)); err != nil {
		return err
	}
	u.images[buildPodImage], err = assembleBuildPod(u.store, work, filepath.Join(u.programs["openshift"], "openshift-builder"))
	return err
}

// assembleRootfs creates one of rootfsImages unless it is stored.
func (u *startup) assembleRootfs(ctx context.Context, work, logDir string, i rootfsImage) error {
	folder := i.folder()
	recipe := rootfs.Recipe{Dir: filepath.Join(u.source, "images", folder), CABundle: host.CABundle()}
	key, err := recipe.Key()
	if err != nil {
		return err
	}
	base, baseKey, err := u.baseOf(recipe)
	if err != nil {
		return err
	}
	key += baseKey
	if stored, err := u.store.Has(i.name, key); err != nil || stored {
		return err
	}
	log, err := os.Create(filepath.Join(logDir, folder+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	work = filepath.Join(work, folder)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	return u.progress.known("making the "+folder+" image", i.usually, func() error {
		_, err := u.store.Ensure(i.name, key, func() (v1.Image, error) {
			return recipe.Build(ctx, work, base, i.config, log)
		})
		return err
	})
}

// baseOf returns the base image of a recipe and its key, nil for none.
func (u *startup) baseOf(recipe rootfs.Recipe) (v1.Image, string, error) {
	name, err := recipe.Base()
	if err != nil || name == "" {
		return nil, "", err
	}
	for _, i := range rootfsImages {
		if i.folder() == name {
			return u.store.Image(i.name)
		}
	}
	return nil, "", fmt.Errorf("reading the image description %s: its base %s is no image of the cluster", recipe.Dir, name)
}

func (u *startup) compile(ctx context.Context, logDir string) error {
	builder := build.Builder{Source: u.source, Cache: u.cacheDir}
	u.programs = map[string]string{}
	sets := slices.Clone(build.Sets)
	if !u.options.NoNetworks {
		sets = append(sets, build.Networks)
	}
	if !u.options.NoTekton {
		sets = append(sets, u.options.tekton())
	}
	if u.options.Kueue != "" {
		sets = append(sets, build.Kueue(u.options.Kueue))
	}
	if u.options.Peers {
		sets = append(sets, build.Peers, build.MPI)
	}
	if u.options.Triggers {
		sets = append(sets, build.Triggers)
	}
	if u.extras.Tkn {
		sets = append(sets, build.Tkn)
	}
	for _, set := range sets {
		folder, err := builder.Folder(set)
		if err != nil {
			return err
		}
		if _, err := os.Stat(folder); err != nil {
			log, err := os.Create(filepath.Join(logDir, "compile-"+set.Name+".log"))
			if err != nil {
				return err
			}
			err = u.progress.known("compiling "+set.Name, set.Usually, func() error {
				_, err := builder.Build(ctx, set, log)
				return err
			})
			log.Close()
			if err != nil {
				return err
			}
		}
		u.programs[set.Name] = folder
	}
	return nil
}

// prepareHost records what down must restore, and then creates the network, the cgroups and the state folder.
func (u *startup) prepareHost(ctx context.Context) error {
	if err := os.MkdirAll(topology.StateDir, 0o755); err != nil {
		return err
	}
	if err := rememberHost(); err != nil {
		return err
	}
	if err := host.LoadBridgeFilter(ctx); err != nil {
		return err
	}
	if err := host.ShareMount(topology.StateDir); err != nil {
		return err
	}
	if err := host.EnableForwarding(); err != nil {
		return err
	}
	network := host.Network{Namespaces: append(u.options.nodes(), topology.Control())}
	if err := network.Up(ctx); err != nil {
		return err
	}
	if err := host.FabricUp(ctx, u.options.nodes()); err != nil {
		return err
	}
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	if err := cgroups.Create(process.SystemCgroup); err != nil {
		return err
	}
	for _, n := range u.options.nodes() {
		if err := cgroups.Create(topology.CgroupRoot + "/" + n.Name); err != nil {
			return err
		}
	}
	boot, err := host.BootID()
	if err != nil {
		return err
	}
	return os.WriteFile(bootPath(), []byte(boot), 0o644)
}

// prepareFiles writes certificates, kubeconfigs, repositories and links to the programs.
func (u *startup) prepareFiles(ctx context.Context) error {
	ca, err := pki.Open(topology.State("pki"), "localcluster")
	if err != nil {
		return err
	}
	admin, err := ca.Issue(pki.Request{File: "admin", User: "localcluster-admin", Groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if err := ca.WriteKubeconfig(topology.Kubeconfig(), topology.APIServerURL, admin); err != nil {
		return err
	}
	if u.caBundle, err = writeCABundle(caBundlePath, ca.CertPath()); err != nil {
		return err
	}
	if err := gitserver.Prepare(ctx, topology.State("git"), []string{topology.GitHost, topology.ControlIP}); err != nil {
		return err
	}
	kube := filepath.Join(u.programs["kubernetes"], "kube")
	clients := map[string]string{"kubectl": kube}
	if u.extras.Tkn {
		clients["tkn"] = filepath.Join(u.programs[build.Tkn.Name], "tkn")
	}
	for name, target := range clients {
		if err := link(target, topology.State("bin", name)); err != nil {
			return err
		}
	}
	if err := u.linkNetworkPlugins(); err != nil {
		return err
	}
	for _, name := range []string{"nvidia-smi", "ib_write_bw"} {
		// Copy it, because containers mount it, and the cache may be rebuilt in the meantime. Not into bin, which users put into PATH: a
		// local run would ask the stand-in for this machine's GPUs.
		if err := copyProgram(filepath.Join(u.programs["in-pod"], name), topology.State("in-pod", name)); err != nil {
			return err
		}
	}
	u.plan = &plan{
		options: u.options, ca: ca, cacheDir: u.cacheDir,
		kube: kube, etcd: filepath.Join(u.programs["kubernetes"], "etcd"),
		openshift:  filepath.Join(u.programs["openshift"], "openshift-apiserver"),
		pauseImage: u.images["pause"], builderImage: u.images[buildPodImage],
	}
	u.plan.logIn()
	return u.options.save()
}

// linkNetworkPlugins gathers Debian's plugins and the cluster's in one folder.
func (u *startup) linkNetworkPlugins() error {
	sriov := filepath.Join(u.programs["sriov"], "sriov")
	plugins := map[string]string{"sriov": sriov}
	if !u.options.NoNetworks {
		plugins["multus"] = filepath.Join(u.programs[build.Networks.Name], "multus")
		plugins["whereabouts"] = filepath.Join(u.programs[build.Networks.Name], "cmd")
	}
	dir := filepath.Dir(host.NetworkPlugin())
	debians, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, p := range debians {
		plugins[p.Name()] = filepath.Join(dir, p.Name())
	}
	plugins[cni.RealMacvlan], plugins[cni.Macvlan] = filepath.Join(dir, cni.Macvlan), sriov
	for name, target := range plugins {
		if err := link(target, filepath.Join(cniDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func link(target, path string) error {
	if old, err := os.Readlink(path); err == nil && old == target {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && string(old) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// startAll starts the components that do not run, applies missing manifests, and waits until the cluster is usable. It
// starts a component after those that it depends on, and independent components in parallel.
func (u *startup) startAll(ctx context.Context) error {
	nodes := u.options.nodes()
	control, servers := u.plan.control(), u.plan.servers()
	var perNode [][]process.Spec
	proxies := []process.Spec{u.plan.proxy(topology.Control())}
	for _, n := range nodes {
		perNode = append(perNode, u.plan.node(n))
		proxies = append(proxies, u.plan.proxy(n))
	}
	if u.plan.err != nil {
		return u.plan.err
	}
	starter := newStarter(ctx)
	defer starter.stop()

	etcd, apiserver, others := control[0], control[1], control[2:]
	first := append([]process.Spec{etcd, apiserver}, servers[0], servers[1])
	for _, specs := range perNode {
		first = append(first, specs[0]) // containerd
	}
	if err := starter.start(first...); err != nil {
		return err
	}
	if len(starter.started) == 0 {
		// The basic components were all running. The rest may be healthy too.
		if ok, err := u.healthy(ctx, append(append(others, servers...), proxies...), perNode); err != nil || ok {
			return err
		}
	}
	u.changed = true
	if err := u.progress.stage("etcd and API server", func() error { return starter.until(waitAPI) }); err != nil {
		return err
	}
	if err := starter.until(func(ctx context.Context) error { return waitContainerd(ctx, nodes) }); err != nil {
		return err
	}
	if _, restarted := starter.started[apiserver.Name]; restarted {
		// Restart the API server's clients, because they back off after failed connections and would notice only after
		// up to half a minute.
		for _, spec := range slices.Concat(others, servers[2:]) {
			if err := process.Stop(spec.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	group, groupCtx := errgroup.WithContext(starter.ctx)
	group.Go(func() error {
		rest := slices.Concat(others, servers[2:], proxies)
		for _, specs := range perNode {
			rest = append(rest, specs[1:]...)
		}
		if err := starter.start(rest...); err != nil {
			return err
		}
		return u.progress.stage("nodes", func() error {
			if err := waitNodes(groupCtx, u.options, starter.started); err != nil {
				return err
			}
			return describeNodes(groupCtx, u.options)
		})
	})
	group.Go(func() error {
		if err := u.progress.stage("manifests applied", func() error { return u.apply(groupCtx) }); err != nil {
			return err
		}
		if err := u.progress.stage("profile applied", func() error { return u.applyProfile(groupCtx) }); err != nil {
			return fmt.Errorf("applying the profile: %w", err)
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return starter.explain(err)
	}
	// After the nodes: a kubelet that was restarted says that its pods are not ready until it has probed them again.
	return starter.until(func(ctx context.Context) error {
		return u.progress.stage("services of the cluster ready", func() error { return waitReady(ctx, u.options) })
	})
}

// healthy reports whether every component runs and the cluster is ready.
func (u *startup) healthy(ctx context.Context, specs []process.Spec, perNode [][]process.Spec) (bool, error) {
	for _, node := range perNode {
		specs = append(specs, node...)
	}
	for _, s := range specs {
		if !process.Running(s) {
			return false, nil
		}
	}
	manifests, err := u.manifests(ctx)
	if err != nil {
		return false, err
	}
	if applied, err := os.ReadFile(appliedPath()); err != nil || string(applied) != sum(manifests) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := waitNodes(ctx, u.options, nil); err != nil {
		return false, nil
	}
	return waitReady(ctx, u.options) == nil, nil
}

func appliedPath() string { return topology.State("applied") }

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func (u *startup) manifests(ctx context.Context) (string, error) {
	modules, err := manifestModules(ctx, u.source, u.options)
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(u.plan.ca.CertPath())
	if err != nil {
		return "", err
	}
	return render(u.images, ca, u.caBundle, modules)
}

// apply applies the manifests with the real kubectl, unless they are already applied.
func (u *startup) apply(ctx context.Context) error {
	manifests, err := u.manifests(ctx)
	if err != nil {
		return err
	}
	if applied, err := os.ReadFile(appliedPath()); err == nil && string(applied) == sum(manifests) {
		return nil
	}
	// kubectl reads the list of kinds only once, so apply the definitions of new kinds first.
	kinds := definitions(manifests)
	for _, step := range []struct {
		input string
		args  []string
	}{
		{kinds, applying},
		{kinds, []string{"wait", "--for=condition=Established", "--timeout=60s", "--filename=-"}},
		{manifests, applying},
	} {
		if err := kubectl(ctx, step.input, step.args); err != nil {
			return fmt.Errorf("applying manifests: %w", err)
		}
	}
	return os.WriteFile(appliedPath(), []byte(sum(manifests)), 0o644)
}

var applying = []string{"apply", "--server-side", "--force-conflicts", "--field-manager=localcluster", "--filename=-"}

func kubectl(ctx context.Context, input string, args []string) error {
	cmd := exec.CommandContext(ctx, topology.State("bin", "kubectl"), append([]string{"--kubeconfig=" + topology.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, problemsIn(string(out)))
	}
	return nil
}

// problemsIn omits the lines in which kubectl reports success.
func problemsIn(output string) string {
	var problems []string
	for line := range strings.Lines(output) {
		if !strings.HasSuffix(strings.TrimSpace(line), "serverside-applied") {
			problems = append(problems, strings.TrimSpace(line))
		}
	}
	return strings.Join(problems, "; ")
}
