// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// isolated names the environment variable of the benchmark's process in its own network, with a folder for its files.
const isolated = "MLENV_BENCH_ISOLATED"

// logsVariable names the environment variable with the folder for the logs of the control plane, which no one needs otherwise.
const logsVariable = "MLENV_BENCH_LOGS"

// The addresses of the isolated network: every address of podNetwork is the machine's own, so that each pod can have one. The API server
// refuses endpoints at loopback addresses.
const (
	podNetwork    = "10.64.0.0/15"
	serverAddress = "10.65.0.1"
	serverURL     = "https://" + serverAddress + ":6443"
)

// isolate runs the benchmark again in a network and a mount namespace of its own, where no port and no address is in use, and reports
// whether this process is the outer one. The inner one has the cluster's DNS in /etc/resolv.conf.
func isolate(b *testing.B) bool {
	b.Helper()
	if os.Getenv(isolated) == "" {
		// All processes end with the inner one, the first of its PID namespace.
		arguments := []string{"--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"}
		if os.Getuid() != 0 {
			arguments = append(arguments, "--user", "--map-root-user")
		}
		inner := exec.CommandContext(b.Context(), "unshare", append(append(arguments, os.Args[0]), os.Args[1:]...)...)
		inner.Env = append(os.Environ(), isolated+"="+b.TempDir())
		inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
		check(b, inner.Run())
		return true
	}
	files := os.Getenv(isolated)
	run := func(words ...string) {
		if text, err := exec.CommandContext(b.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %v: %s", words, err, text)
		}
	}
	// In memory, so that another program's use of the disk does not count.
	run("mount", "-t", "tmpfs", "tmpfs", files)
	b.Setenv("TMPDIR", files)
	resolver := filepath.Join(b.TempDir(), "resolv.conf")
	check(b, os.WriteFile(resolver, []byte("nameserver 127.0.0.1\nsearch ns.svc.cluster.local svc.cluster.local cluster.local\n"+
		"options ndots:5\n"), 0o644))
	run("ip", "link", "set", "lo", "up")
	run("ip", "route", "add", "local", podNetwork, "dev", "lo")
	run("mount", "--bind", resolver, "/etc/resolv.conf")
	return false
}

// controlPlane is the local cluster's own, without its nodes: etcd, API server, controllers, scheduler and DNS.
type controlPlane struct {
	b   *testing.B
	dir string
	// folders has the folders of the programs by the names of their sets.
	folders map[string]string
	running map[string]*exec.Cmd
}

// users are the tokens' users with their groups.
var users = map[string]string{
	"admin": "system:masters", "system:kube-controller-manager": "", "system:kube-scheduler": "", "dns": "system:masters",
	"kueue": "system:masters",
}

func startControlPlane(b *testing.B) *controlPlane {
	b.Helper()
	c := &controlPlane{b: b, dir: b.TempDir(), folders: programs(b), running: map[string]*exec.Cmd{}}
	tokens := ""
	for user, groups := range users {
		tokens += fmt.Sprintf("%s,%s,%[2]s,%q\n", tokenOf(user), user, groups)
		c.kubeconfig(user)
	}
	c.write("tokens.csv", tokens)
	c.write("Corefile", "cluster.local:53 {\n  errors\n  kubernetes cluster.local {\n    kubeconfig "+c.path("dns.kubeconfig")+
		"\n  }\n}\n")
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(b, err)
	c.write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	kube, etcd := filepath.Join(c.folders["kubernetes"], "kube"), filepath.Join(c.folders["kubernetes"], "etcd")
	c.start("etcd", etcd, "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn")
	c.start("kube-apiserver", kube, "kube-apiserver", "--bind-address="+serverAddress, "--advertise-address="+serverAddress,
		"--cert-dir="+c.path("certificates"), "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=172.30.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.path("accounts.key"), "--service-account-signing-key-file="+c.path("accounts.key"),
		"--token-auth-file="+c.path("tokens.csv"), "--authorization-mode=Node,RBAC", "--allow-privileged",
		"--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement", "--profiling=false",
		// No kube-proxy leads to Kueue's webhooks by their Service.
		"--enable-aggregator-routing")
	c.await(b.Context(), "kube-apiserver", serverURL+"/readyz")
	manager, scheduler := c.path("system:kube-controller-manager.kubeconfig"), c.path("system:kube-scheduler.kubeconfig")
	c.start("kube-controller-manager", kube, "kube-controller-manager", "--bind-address=127.0.0.1", "--kubeconfig="+manager,
		"--authentication-kubeconfig="+manager, "--authorization-kubeconfig="+manager, "--leader-elect=false",
		"--use-service-account-credentials", "--service-account-private-key-file="+c.path("accounts.key"),
		"--root-ca-file="+c.path("certificates", "apiserver.crt"), "--profiling=false",
		// The stand-in's heartbeats may be late on a busy machine.
		"--node-monitor-grace-period=5m")
	c.start("kube-scheduler", kube, "kube-scheduler", "--bind-address=127.0.0.1", "--kubeconfig="+scheduler,
		"--authentication-kubeconfig="+scheduler, "--authorization-kubeconfig="+scheduler, "--leader-elect=false", "--profiling=false")
	c.start("coredns", filepath.Join(c.folders["in-pod"], "coredns"), "-conf", c.path("Corefile"))
	return c
}

// programs returns the folders of the local cluster's programs.
func programs(b *testing.B) map[string]string {
	b.Helper()
	const localcluster = "../../../bin/localcluster"
	output, err := exec.CommandContext(b.Context(), localcluster, "programs", "--kueue="+kueueVersion).Output()
	if err != nil {
		b.Fatalf("%s programs: %v; make bin/localcluster compiles it", localcluster, err)
	}
	folders := map[string]string{}
	for line := range strings.Lines(string(output)) {
		name, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		folders[name] = folder
	}
	return folders
}

func tokenOf(user string) string { return "token-of-" + strings.ReplaceAll(user, ":", "-") }

func (c *controlPlane) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}

func (c *controlPlane) write(name, content string) {
	check(c.b, os.WriteFile(c.path(name), []byte(content), 0o600))
}

// kubeconfig writes the kubeconfig of a user. The API server signs its certificate itself.
func (c *controlPlane) kubeconfig(user string) {
	c.write(user+".kubeconfig", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "u", "user": {"token": %q}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, serverURL, tokenOf(user)))
}

func adminConfig() *rest.Config {
	return &rest.Config{Host: serverURL, BearerToken: tokenOf("admin"), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// adminClient returns the client of everything here that is not the product.
func adminClient(b testing.TB) *kubernetes.Clientset {
	b.Helper()
	config := adminConfig()
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

// start starts a program until the benchmark of this size ends.
func (c *controlPlane) start(name, program string, arguments ...string) {
	c.b.Helper()
	log, err := os.Create(c.path(name + ".log"))
	check(c.b, err)
	command := exec.CommandContext(c.b.Context(), program, arguments...)
	command.Stdout, command.Stderr, command.Dir = log, log, c.dir
	command.Env = append(os.Environ(), "GOGC=200")
	check(c.b, command.Start())
	c.running[name] = command
}

// stop ends all programs, and keeps their logs in the folder that logsVariable names.
func (c *controlPlane) stop() {
	for _, command := range c.running {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
	}
	if to := os.Getenv(logsVariable); to != "" {
		for name := range c.running {
			if content, err := os.ReadFile(c.path(name + ".log")); err == nil {
				_ = os.WriteFile(filepath.Join(to, name+".log"), content, 0o644)
			}
		}
	}
}

// await waits until a program answers at a URL with 200.
func (c *controlPlane) await(ctx context.Context, program, url string) {
	c.b.Helper()
	transport, err := rest.TransportFor(adminConfig())
	check(c.b, err)
	const startTime = 3 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		check(c.b, err)
		response, err := transport.RoundTrip(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			log, _ := os.ReadFile(c.path(program + ".log"))
			c.b.Fatal(errors.Join(err, ctx.Err()), "\n", string(log[max(0, len(log)-2000):]))
		}
	}
}

// memory returns the peak memory of a program in MiB.
func (c *controlPlane) memory(name string) float64 {
	return peakOf(c.b, fmt.Sprint(c.running[name].Process.Pid))
}
