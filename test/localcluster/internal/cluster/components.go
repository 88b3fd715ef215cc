// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/pki"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/process"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma/cni"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/registry"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// nodeBinds returns the folders whose paths are fixed in a node's programs, and the folders of this node that replace
// them.
func nodeBinds(n topology.Netns) map[string]string {
	return map[string]string{
		"/var/lib/kubelet":     filepath.Join(n.Dir(), "kubelet"),
		"/var/lib/cni":         filepath.Join(n.Dir(), "cni"),
		"/var/log/containers":  filepath.Join(n.Dir(), "container-logs"),
		"/run/containerd":      filepath.Join(n.Dir(), "run"),
		"/run/k8s.cni.cncf.io": filepath.Join(n.Dir(), "device-info"),
		"/etc/cni":             filepath.Join(n.Dir(), "etc-cni"),
	}
}

const containerdSocket = "/run/containerd/containerd.sock"

// infinibandDir is the folder with the device files of a node with its own RDMA devices. Privileged containers get all
// of /dev.
const infinibandDir = "/dev/infiniband"

// plan creates the specifications of the components. It also writes their certificates and configuration files.
type plan struct {
	options Options
	ca      *pki.Authority
	// kube and etcd are programs.
	kube, etcd string
	// openshift is the program of the stand-in for OpenShift's build API.
	openshift                string
	pauseImage, builderImage string
	cacheDir                 string
	// nodeLogin is USER:PASSWORD of registry.NodeUser in base64.
	nodeLogin string
	// written has the content of the configuration files, by path.
	written map[string]string
	err     error
}

// control returns the components of the control plane in the order of their start.
func (p *plan) control() []process.Spec {
	p.write(auditPolicyPath, auditPolicy())
	p.write(admissionConfigPath, admissionConfig())
	p.writeAuthentication()
	p.kubeconfigNamed(admissionKubeconfigPath, topology.AdmissionAddress,
		pki.Request{File: "apiserver-webhook-client", User: "system:kube-apiserver-webhook"})

	names := []string{
		topology.ControlIP, topology.APIServiceIP, "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	file := "apiserver"
	if api := p.options.like().API; api != "" {
		names, file = append(names, api), "apiserver-"+api
	}
	serving := p.issue(pki.Request{File: file, User: "kube-apiserver", Hosts: names})
	etcdServing := p.issue(pki.Request{File: "etcd", User: "etcd", Hosts: []string{"127.0.0.1", "localhost"}})
	etcdClient := p.issue(pki.Request{File: "apiserver-etcd-client", User: "kube-apiserver"})
	kubeletClient := p.issue(pki.Request{File: "apiserver-kubelet-client", User: "kube-apiserver-kubelet-client",
		Groups: []string{"system:masters"}})
	proxyClient := p.issue(pki.Request{File: "front-proxy-client", User: "front-proxy-client"})
	saKey := topology.State("pki", "sa.key")
	p.check(pki.ServiceAccountKey(saKey))
	ca := p.ca.CertPath()

	etcd := p.component("etcd", topology.Control(), p.etcd,
		"--name=localcluster", "--data-dir="+topology.State("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=https://"+topology.EtcdAddress, "--advertise-client-urls=https://"+topology.EtcdAddress,
		"--listen-peer-urls=https://127.0.0.1:2380", "--initial-advertise-peer-urls=https://127.0.0.1:2380",
		"--initial-cluster=localcluster=https://127.0.0.1:2380",
		"--cert-file="+etcdServing.Cert, "--key-file="+etcdServing.Key, "--trusted-ca-file="+ca, "--client-cert-auth",
		"--peer-cert-file="+etcdServing.Cert, "--peer-key-file="+etcdServing.Key, "--peer-trusted-ca-file="+ca, "--peer-client-cert-auth",
		"--log-level=warn")
	apiserver := p.component("kube-apiserver", topology.Control(), p.kube, "kube-apiserver",
		"--bind-address="+topology.ControlIP, "--advertise-address="+topology.ControlIP, "--secure-port=6443",
		"--etcd-servers=https://"+topology.EtcdAddress, "--etcd-cafile="+ca, "--etcd-certfile="+etcdClient.Cert, "--etcd-keyfile="+etcdClient.Key,
		"--service-cluster-ip-range="+topology.ServiceCIDR,
		"--tls-cert-file="+serving.Cert, "--tls-private-key-file="+serving.Key, "--client-ca-file="+ca,
		"--kubelet-certificate-authority="+ca, "--kubelet-client-certificate="+kubeletClient.Cert, "--kubelet-client-key="+kubeletClient.Key,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+saKey, "--service-account-signing-key-file="+saKey,
		"--requestheader-client-ca-file="+ca, "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+proxyClient.Cert, "--proxy-client-key-file="+proxyClient.Key, "--enable-aggregator-routing",
		"--authorization-mode=Node,RBAC", "--allow-privileged", "--authentication-config="+authenticationConfigPath,
		// OpenShift's API server does not limit the time for sending a binary build's source. Here the request timeout
		// is the only way to allow it more time.
		"--request-timeout=6m",
		// The second plugin is enabled on OpenShift too. It requires a right for blocking an owner's deletion.
		"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
		"--admission-control-config-file="+admissionConfigPath,
		"--audit-policy-file="+auditPolicyPath, "--audit-log-path="+AuditLogPath, "--audit-log-maxsize=200", "--audit-log-maxbackup=2",
		"--profiling=false")
	// The API server uses an eighth of the machine's processor time, much of it for garbage collection.
	apiserver.Env = []string{"GOGC=200"}
	controllerManagerConfig := p.kubeconfig("kube-controller-manager", "system:kube-controller-manager")
	controllerManager := p.component("kube-controller-manager", topology.Control(), p.kube, "kube-controller-manager",
		"--bind-address=127.0.0.1", "--kubeconfig="+controllerManagerConfig,
		"--authentication-kubeconfig="+controllerManagerConfig, "--authorization-kubeconfig="+controllerManagerConfig,
		"--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file="+saKey, "--root-ca-file="+ca,
		"--cluster-signing-cert-file="+ca, "--cluster-signing-key-file="+topology.State("pki", "ca.key"),
		"--profiling=false")
	schedulerConfig := p.kubeconfig("kube-scheduler", "system:kube-scheduler")
	scheduler := p.component("kube-scheduler", topology.Control(), p.kube, "kube-scheduler",
		"--bind-address=127.0.0.1", "--kubeconfig="+schedulerConfig,
		"--authentication-kubeconfig="+schedulerConfig, "--authorization-kubeconfig="+schedulerConfig,
		"--leader-elect=false", "--profiling=false")
	return []process.Spec{etcd, apiserver, controllerManager, scheduler}
}

// servers returns the servers next to the control plane: registry, git, stand-ins.
func (p *plan) servers() []process.Spec {
	git := p.issue(pki.Request{File: "git", User: "git", Hosts: []string{topology.GitHost, topology.ControlIP}})
	admission := p.issue(pki.Request{File: "openshift", User: "openshift-stand-in", Hosts: []string{topology.ControlIP}})
	return []process.Spec{
		p.self("registry", topology.Control(), "--store="+filepath.Join(p.cacheDir, "images"), "--kubeconfig="+p.stand("registry")),
		p.self("git", topology.Control(), "--cert="+git.Cert, "--key="+git.Key),
		p.self("openshift", topology.Control(), "--cert="+admission.Cert, "--key="+admission.Key, "--client-ca="+p.ca.CertPath(),
			"--ca-bundle="+caBundlePath, "--kubeconfig="+p.stand("openshift"), "--without="+strings.Join(p.options.withoutConstraints(), ",")),
		p.self("storage", topology.Control(), "--kubeconfig="+p.stand("storage")),
		p.buildAPI(),
	}
}

// buildAPI returns the aggregated API server of builds and images.
func (p *plan) buildAPI() process.Spec {
	serving := p.issue(pki.Request{File: "openshift-apiserver", User: "openshift-apiserver", Hosts: []string{
		topology.ControlIP, "api.openshift-apiserver.svc", "localhost", "127.0.0.1",
	}})
	etcd := p.issue(pki.Request{File: "openshift-apiserver-etcd-client", User: "openshift-apiserver"})
	spec := p.component("openshift-apiserver", topology.Control(), p.openshift,
		"--address="+topology.BuildAPIAddress, "--cert="+serving.Cert, "--key="+serving.Key,
		"--etcd=https://"+topology.EtcdAddress, "--etcd-ca="+p.ca.CertPath(), "--etcd-cert="+etcd.Cert, "--etcd-key="+etcd.Key,
		"--kubeconfig="+p.stand("openshift-apiserver"), "--registry="+topology.RegistryHost, "--builder-image="+p.builderImage,
		"--pull-secret-delay="+p.options.PullSecretDelay.String())
	spec.Env = []string{"DOCKER_CONFIG=" + DockerConfig()}
	// Builds get the proxy of this environment. What is reached without it may differ between two calls of up.
	if proxies := host.Proxies(os.Getenv); proxies != nil {
		spec.Version += fmt.Sprintf(" %x", sha256.Sum256([]byte(proxies["HTTP_PROXY"]+" "+proxies["HTTPS_PROXY"])))
	}
	return spec
}

// proxy returns a kube-proxy. One runs in each namespace, including the control plane's: otherwise the API server could
// not reach a webhook by its Service.
func (p *plan) proxy(n topology.Netns) process.Spec {
	as := n.Node
	if n.PodCIDR == "" {
		// kube-proxy waits for a node with its name, and the control plane is not a node.
		as = topology.Node(1).Node
	}
	path := filepath.Join(n.Dir(), "kube-proxy.yaml")
	p.write(path, document{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "iptables", "clusterCIDR": topology.PodCIDR, "hostnameOverride": as,
		"bindAddress": n.IP, "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
		"clientConnection": document{"kubeconfig": p.kubeconfig("kube-proxy", "system:kube-proxy")},
		// Only the machine's first namespace may size the connection table.
		"conntrack": document{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"iptables":  document{"minSyncPeriod": "100ms"},
	})
	return p.component("kube-proxy@"+n.Name, n, p.kube, "kube-proxy", "--config="+path)
}

// node returns a node's components in the order of their start.
func (p *plan) node(n topology.Netns) []process.Spec {
	dir := n.Dir()
	resolvConf, err := resolvConf()
	p.check(err)
	containerdConfig := filepath.Join(dir, "containerd.toml")
	p.writeText(containerdConfig, containerdTOML(n, p.pauseImage))
	p.writeSecret(filepath.Join(dir, "registries", topology.RegistryHost, "hosts.toml"),
		// containerd requires a host, and tries the server after it.
		fmt.Sprintf("server = %[1]q\n[header]\n  Authorization = %[2]q\n[host.%[1]q.header]\n  Authorization = %[2]q\n", "http://"+
			topology.RegistryHost, "Basic "+p.nodeLogin))
	p.networks(n)

	serving := p.issue(pki.Request{File: "kubelet-" + n.Node, User: "system:node:" + n.Node, Groups: []string{"system:nodes"},
		Hosts: []string{n.IP, n.Node}})
	config := filepath.Join(dir, "kubelet.yaml")
	p.write(config, document{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": n.IP, "tlsCertFile": serving.Cert, "tlsPrivateKeyFile": serving.Key,
		"authentication": document{
			"anonymous": document{"enabled": false},
			"webhook":   document{"enabled": true},
			"x509":      document{"clientCAFile": p.ca.CertPath()},
		},
		"authorization": document{"mode": "Webhook"},
		"clusterDNS":    []string{topology.DNSServiceIP}, "clusterDomain": "cluster.local", "resolvConf": resolvConf,
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/" + topology.CgroupRoot + "/" + n.Name, "failCgroupV1": false,
		"enforceNodeAllocatable":   []string{},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"podLogsDir":               filepath.Join(dir, "pod-logs"),
		"volumePluginDir":          filepath.Join(dir, "volume-plugins"),
		"failSwapOn":               false,
		"serializeImagePulls":      false,
		"containerLogMaxSize":      "50Mi", // as on OpenShift; a client that follows a log can miss lines when a file is full
		// All nodes share a test machine's disk, and must not clean it up.
		"evictionHard":                document{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"healthzBindAddress":          "127.0.0.1",
	})
	kubeconfig := filepath.Join(dir, "kubelet.kubeconfig")
	p.check(p.ca.WriteKubeconfig(kubeconfig, topology.APIServerURL, serving))

	containerd := p.component("containerd@"+n.Name, n, "containerd", "--config", containerdConfig)
	kubelet := p.component("kubelet@"+n.Name, n, p.kube, "kubelet", "--config="+config, "--kubeconfig="+kubeconfig,
		"--hostname-override="+n.Node, "--node-ip="+n.IP, "--cert-dir="+filepath.Join(dir, "pki"))
	csi := p.self("csi@"+n.Name, n, "--node="+n.Node)
	gpus := p.self("gpu@"+n.Name, n, "--node="+n.Name)
	p.check(gpu.WriteState(gpuStateDir(n), gpu.Inventory(n.Name, p.options.gpusOf(n), p.options.Faults)))
	nics := p.self("rdma@"+n.Name, n, "--node="+n.Name)
	p.check(rdma.WriteState(topology.RDMADir(n.Name),
		rdma.State{Layout: p.options.layoutOf(n), Faults: rdma.FaultsOf(n.Name, p.options.RDMAFaults)}))
	containerd.Env = []string{cni.NodeVariable + "=" + n.Name}
	containerd.Memlock = p.options.memlock()
	specs := []process.Spec{containerd, kubelet, csi, gpus, nics}
	for i := range specs {
		specs[i].Binds = nodeBinds(n)
	}
	// Change the copies of containerd and kubelet in specs.
	if p.options.layoutOf(n).Form == rdma.HostDevices {
		specs[0].Binds[infinibandDir] = rdma.Devices(topology.RDMADir(n.Name))
	}
	if p.options.Profile != "" && p.options.hasDevices(n) {
		maps.Copy(specs[1].Binds, p.machine(n))
	}
	return specs
}

func gpuStateDir(n topology.Netns) string { return filepath.Join(n.Dir(), "gpu") }

// component returns the specification of a program with its arguments.
func (p *plan) component(name string, n topology.Netns, argv ...string) process.Spec {
	version := sha256.New()
	for _, arg := range argv {
		_, value, ok := strings.Cut(arg, "=")
		if !ok {
			value = arg
		}
		fmt.Fprintln(version, p.written[value])
	}
	return process.Spec{Name: name, Netns: n, Argv: argv, Version: hex.EncodeToString(version.Sum(nil))[:12]}
}

// self returns the specification of a server that is part of this program.
func (p *plan) self(name string, n topology.Netns, args ...string) process.Spec {
	exe, err := os.Executable()
	p.check(err)
	info, err := os.Stat(exe)
	p.check(err)
	kind, _, _ := strings.Cut(name, "@")
	spec := p.component(name, n, append([]string{exe, "serve", kind}, args...)...)
	if info != nil {
		spec.Version += fmt.Sprintf(" %d %d", info.Size(), info.ModTime().UnixNano())
	}
	return spec
}

// stand writes a kubeconfig for a stand-in, whose user name then appears in the audit log.
func (p *plan) stand(name string) string {
	return p.kubeconfigFor(name, pki.Request{File: name + "-client", User: "localcluster:" + name, Groups: []string{"system:masters"}})
}

func (p *plan) kubeconfig(name, user string) string {
	return p.kubeconfigFor(name, pki.Request{File: name, User: user})
}

func (p *plan) kubeconfigFor(name string, r pki.Request) string {
	path := topology.State("pki", name+".kubeconfig")
	p.check(p.ca.WriteKubeconfig(path, topology.APIServerURL, p.issue(r)))
	return path
}

// kubeconfigNamed writes the kubeconfig with which the API server authenticates to the webhook at that address.
func (p *plan) kubeconfigNamed(path, address string, r pki.Request) {
	pair := p.issue(r)
	p.write(path, document{
		"apiVersion": "v1", "kind": "Config",
		"users": []document{{"name": address, "user": document{"client-certificate": pair.Cert, "client-key": pair.Key}}},
	})
}

func (p *plan) issue(r pki.Request) pki.Pair {
	pair, err := p.ca.Issue(r)
	p.check(err)
	return pair
}

func (p *plan) check(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *plan) write(path string, d any) {
	content, err := marshal(d)
	p.check(err)
	p.writeText(path, content)
}

// writeAuthentication writes the issuers of ID tokens that the API server trusts, none at first. The API server reads the file again
// when it changes, and a test adds its issuer to it: up leaves it as it is.
func (p *plan) writeAuthentication() {
	if _, err := os.Stat(authenticationConfigPath); err == nil {
		return
	}
	p.write(authenticationConfigPath, document{
		"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "AuthenticationConfiguration", "jwt": []document{},
	})
	delete(p.written, authenticationConfigPath) // its content is no reason to restart the API server
}

func (p *plan) writeText(path, content string) { p.writeMode(path, content, 0o644) }

// writeSecret writes a file that only root may read.
func (p *plan) writeSecret(path, content string) { p.writeMode(path, content, 0o600) }

func (p *plan) writeMode(path, content string, mode os.FileMode) {
	if p.written == nil {
		p.written = map[string]string{}
	}
	p.written[path] = content
	p.check(os.MkdirAll(filepath.Dir(path), 0o755))
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		return
	}
	p.check(os.WriteFile(path, []byte(content), mode))
}

// DockerConfig returns the folder for the variable DOCKER_CONFIG. Its config.json has the registry's credentials for
// programs on this machine.
func DockerConfig() string { return topology.State("docker") }

func registryDir() string { return topology.State("registry") }

// logIn writes the registry's credentials for the nodes and for programs on this machine.
func (p *plan) logIn() {
	p.nodeLogin = p.login(registry.NodeUser)
	content, err := marshal(document{"auths": document{topology.RegistryHost: document{"auth": p.login(registry.ClusterUser)}}})
	p.check(err)
	p.writeSecret(filepath.Join(DockerConfig(), "config.json"), content)
}

// login returns USER:PASSWORD in base64.
func (p *plan) login(user string) string {
	password, err := registry.Password(registryDir(), user)
	p.check(err)
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// registryReference returns the reference of the image by its digest in the cluster's registry.
func registryReference(img image.Image) string {
	repository, _ := img.Split()
	return topology.RegistryHost + "/" + repository + "@" + img.Digest.String()
}

// resolvConf returns the resolv.conf for pods that do not use the cluster's DNS, such as CoreDNS. It names a server
// that a pod can reach.
func resolvConf() (string, error) {
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		reachable, err := host.HasReachableNameserver(path)
		if err == nil && reachable {
			return path, nil
		}
	}
	return "", fmt.Errorf("neither /etc/resolv.conf nor /run/systemd/resolve/resolv.conf names a DNS server with an IPv4 address outside " +
		"the loopback range; pods could not resolve package registries")
}
