// SPDX-License-Identifier: Apache-2.0

// Package host checks and changes the machine for the local cluster: requirements, cgroups, mounts, the network and
// kernel settings.
package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// MinFreeBytes is the free space that up requires: for two nodes with a training image of 2 GB each, its copy in the
// registry, and the compiled components.
const MinFreeBytes = 20 << 30

// NetworkPlugin returns the network plugin for bridges, "" if it is not installed. The others are beside it.
func NetworkPlugin() string { return first("/usr/lib/cni/bridge", "/usr/libexec/cni/bridge") }

// CABundle returns the file of the certificates that the machine trusts, "" if it has none that is known.
func CABundle() string {
	return first("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem")
}

// first returns the first file that exists, "" for none.
func first(paths ...string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Tool is a program that must be installed and the Debian package it is in.
type Tool struct{ Program, Package string }

// Tools are all programs that the cluster runs and that Go does not build.
var Tools = []Tool{
	{"ip", "iproute2"},
	{"iptables", "iptables"},
	{"conntrack", "conntrack"},
	{"containerd", "containerd"},
	{"containerd-shim-runc-v2", "containerd"},
	{"runc", "runc"},
	{"git", "git"},
	{"mmdebstrap", "mmdebstrap"},
	{"/usr/bin/tini-static", "tini"},
	{"go", "golang (1.26 or newer)"},
}

// Check returns every reason why a cluster cannot run here.
func Check(ctx context.Context) error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, errors.New("not root: namespaces, mounts and cgroups need it; run with sudo"))
	}
	for _, t := range Tools {
		if _, err := exec.LookPath(t.Program); err != nil {
			problems = append(problems, fmt.Errorf("%s is not installed; install the Debian package %s (make setup does)", t.Program, t.Package))
		}
	}
	keys := first("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
	for _, file := range []struct{ path, what, in string }{
		{NetworkPlugin(), "the network plugin /usr/lib/cni/bridge", "containernetworking-plugins"},
		{CABundle(), "the file of the certificates that this machine trusts", "ca-certificates"},
		{keys, "the keys of Debian's packages, which the images consist of", "debian-archive-keyring"},
	} {
		if file.path == "" {
			problems = append(problems, fmt.Errorf("%s was not found; install the Debian package %s (make setup does)", file.what, file.in))
		}
	}
	if err := firewall(ctx); err != nil {
		problems = append(problems, err)
	}
	if out, err := exec.CommandContext(ctx, "ip", "netns", "list").CombinedOutput(); err != nil {
		problems = append(problems, fmt.Errorf("ip netns does not work here: %w: %s", err, out))
	}
	if _, err := DetectCgroups(); err != nil {
		problems = append(problems, err)
	}
	if runtime.GOARCH != "amd64" {
		problems = append(problems, fmt.Errorf("this machine is %s; the cluster's images are for amd64", runtime.GOARCH))
	}
	if !FiltersBridges() {
		if err := run(ctx, "modprobe", "--dry-run", bridgeFilter); err != nil {
			problems = append(problems, fmt.Errorf("the kernel cannot filter bridged packets; run modprobe %s, in a container on its host: %w",
				bridgeFilter, err))
		}
	}
	if err := AddressConflict(ctx); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// firewall returns an error if firewalld would reject what the nodes send each other.
func firewall(ctx context.Context) error {
	if running := exec.CommandContext(ctx, "firewall-cmd", "--state").Run() == nil; !running {
		return nil
	}
	zone, _ := exec.CommandContext(ctx, "firewall-cmd", "--get-zone-of-interface="+topology.Bridge).Output()
	if strings.TrimSpace(string(zone)) == "trusted" {
		return nil
	}
	return fmt.Errorf("firewalld rejects what the nodes send each other; until it starts again, this allows it: "+
		"firewall-cmd --zone=trusted --add-interface=%s", topology.Bridge)
}

// bridgeFilter is the kernel's module that lets iptables see the packets between pods of one node.
const bridgeFilter = "br_netfilter"

// FiltersBridges reports whether the kernel has loaded the module, or contains it.
func FiltersBridges() bool {
	_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return err == nil
}

// LoadBridgeFilter loads the module if that is necessary.
func LoadBridgeFilter(ctx context.Context) error {
	if FiltersBridges() {
		return nil
	}
	return run(ctx, "modprobe", bridgeFilter)
}

// UnloadBridgeFilter unloads the module, unless other networks of this machine may need it.
func UnloadBridgeFilter(ctx context.Context) {
	if FiltersBridges() && !othersForward(networks) {
		_ = run(ctx, "modprobe", "--remove", bridgeFilter) // fails if another module needs it
	}
}

// CheckDisk returns an error that names the folders with too little free space for a new cluster.
func CheckDisk(folders ...string) error {
	var problems []error
	for _, folder := range folders {
		free, err := freeBytes(folder)
		if err != nil {
			problems = append(problems, err)
		} else if free < MinFreeBytes {
			problems = append(problems,
				fmt.Errorf("%s has %.1f GB free of the %.0f GB that the cluster may need; make room, or point XDG_CACHE_HOME elsewhere",
					folder, float64(free)/1e9, float64(MinFreeBytes)/1e9))
		}
	}
	return errors.Join(problems...)
}

// freeBytes returns the free space for the folder or, if it does not exist, for its nearest parent.
func freeBytes(folder string) (uint64, error) {
	for {
		var stat unix.Statfs_t
		err := unix.Statfs(folder, &stat)
		if err == nil {
			return stat.Bavail * uint64(stat.Bsize), nil
		}
		if !errors.Is(err, unix.ENOENT) || folder == "/" {
			return 0, fmt.Errorf("reading free space of %s: %w", folder, err)
		}
		folder = filepath.Dir(folder)
	}
}

// HasReachableNameserver reports whether the resolv.conf names a DNS server that a pod can reach: with an IPv4 address, and not on the
// loopback interface: each pod has one of its own.
func HasReachableNameserver(path string) (bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if ip, err := netip.ParseAddr(fields[1]); err == nil && ip.Is4() && !ip.IsLoopback() {
			return true, nil
		}
	}
	return false, nil
}
