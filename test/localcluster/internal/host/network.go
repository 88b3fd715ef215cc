// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Network is the bridge, the namespaces on it, and the host's iptables rules: pods reach the package registries,
// also on a host that drops forwarded packets by default, and no other machine reaches the cluster.
type Network struct{ Namespaces []topology.Netns }

const ruleComment = "ml-dev-env-localcluster"

// Up creates the missing parts of the network.
func (n Network) Up(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + topology.Bridge); errors.Is(err, fs.ErrNotExist) {
		if err := ip(ctx,
			"link add "+topology.Bridge+" type bridge",
			"addr add "+topology.HostIP+"/24 dev "+topology.Bridge,
			"link set "+topology.Bridge+" up"); err != nil {
			return err
		}
	}
	for _, ns := range n.Namespaces {
		if _, err := os.Stat(ns.Path()); err == nil {
			continue
		}
		if err := n.addNamespace(ctx, ns); err != nil {
			return err
		}
	}
	for _, ns := range n.Namespaces {
		if err := n.route(ctx, ns); err != nil {
			return err
		}
	}
	for _, rule := range rules() {
		if run(ctx, "iptables", append([]string{"-w", "-t", rule.table, "-C", rule.chain}, rule.spec...)...) == nil {
			continue
		}
		if err := run(ctx, "iptables", append([]string{"-w", "-t", rule.table, "-I", rule.chain}, rule.spec...)...); err != nil {
			return err
		}
	}
	return nil
}

func (n Network) addNamespace(ctx context.Context, ns topology.Netns) error {
	name := ns.SystemName()
	if err := ip(ctx,
		"netns add "+name,
		"link add "+ns.Veth()+" type veth peer name eth0 netns "+name,
		"link set "+ns.Veth()+" master "+topology.Bridge+" up"); err != nil {
		return err
	}
	if err := ipIn(ctx, name,
		"link set lo up",
		"addr add "+ns.IP+"/24 dev eth0",
		"link set eth0 up",
		"route add default via "+topology.HostIP); err != nil {
		return err
	}
	if ns.PodCIDR != "" {
		if err := ip(ctx, "route replace "+ns.PodCIDR+" via "+ns.IP); err != nil {
			return err
		}
	}
	// Bridged packets must pass iptables. Otherwise, if a pod connects through a Service to a pod of the same node, the
	// answers skip the address translation.
	return run(ctx, "ip", "netns", "exec", name, "sh", "-c",
		"echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables")
}

// route adds the routes to the pods of every node to a namespace, including nodes that are added later.
func (n Network) route(ctx context.Context, ns topology.Netns) error {
	var ways []string
	for _, other := range n.Namespaces {
		if other.PodCIDR != "" && other.Name != ns.Name {
			ways = append(ways, "route replace "+other.PodCIDR+" via "+other.IP)
		}
	}
	return ipIn(ctx, ns.SystemName(), ways...)
}

// Cable connects a namespace to the bridge or disconnects it. Its addresses and routes stay.
func Cable(ctx context.Context, ns topology.Netns, connected bool) error {
	state := "down"
	if connected {
		state = "up"
	}
	return run(ctx, "ip", "link", "set", ns.Veth(), state)
}

// RemoveNamespace removes a namespace with its cables, and the host's route to its pods. Other namespaces keep their
// routes to these pods, which then lead nowhere.
func RemoveNamespace(ctx context.Context, ns topology.Netns) error {
	if _, err := os.Stat(ns.Path()); err == nil {
		if err := run(ctx, "ip", "netns", "delete", ns.SystemName()); err != nil {
			return err
		}
	}
	// The kernel removes the cable only after the last process of the namespace has ended. Remove it now.
	if _, err := os.Stat("/sys/class/net/" + ns.Veth()); err == nil {
		_ = run(ctx, "ip", "link", "delete", ns.Veth())
	}
	if ns.PodCIDR != "" {
		_ = run(ctx, "ip", "route", "delete", ns.PodCIDR)
	}
	return nil
}

// KillInside kills every process in a network namespace and returns when none is left.
func KillInside(ns topology.Netns) error {
	namespace, err := os.Stat(ns.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return killAll("network namespace "+ns.SystemName(), func() ([]int, error) {
		links, err := filepath.Glob("/proc/[0-9]*/ns/net")
		if err != nil {
			return nil, err
		}
		var pids []int
		for _, link := range links {
			// A process that has ended in the meantime is in no namespace.
			if found, err := os.Stat(link); err == nil && os.SameFile(found, namespace) {
				pid, err := strconv.Atoi(strings.Split(link, "/")[2])
				if err != nil {
					return nil, err
				}
				pids = append(pids, pid)
			}
		}
		return pids, nil
	})
}

type iptablesRule struct {
	table, chain string
	spec         []string
}

func rules() []iptablesRule {
	comment := []string{"-m", "comment", "--comment", ruleComment}
	forward := func(spec ...string) iptablesRule { return iptablesRule{"filter", "FORWARD", append(spec, comment...)} }
	// No packet matches two of these, so their order does not matter.
	rules := []iptablesRule{
		forward("-i", topology.Bridge, "-j", "ACCEPT"),
		forward("!", "-i", topology.Bridge, "-o", topology.Bridge, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
		forward("!", "-i", topology.Bridge, "-o", topology.Bridge, "-m", "conntrack", "!", "--ctstate", "ESTABLISHED,RELATED", "-j", "DROP"),
	}
	for _, cidr := range []string{topology.BridgeSubnet, topology.PodCIDR} {
		rules = append(rules, iptablesRule{"nat", "POSTROUTING",
			append([]string{"-s", cidr, "!", "-o", topology.Bridge, "-j", "MASQUERADE"}, comment...)})
	}
	return rules
}

// Down removes the network and its rules. It needs no Network value: it finds namespaces by name, so it also removes the
// remains of a cluster of another size.
func Down(ctx context.Context) error {
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "mlenv-") {
			if err := run(ctx, "ip", "netns", "delete", e.Name()); err != nil {
				return err
			}
		}
	}
	if _, err := os.Stat("/sys/class/net/" + topology.Bridge); err == nil {
		if err := run(ctx, "ip", "link", "delete", topology.Bridge); err != nil {
			return err
		}
	}
	// A dying process can keep a namespace and its cable alive for a while. Deleting the host's end removes the cable
	// now.
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name(), "mlv-") {
			_ = run(ctx, "ip", "link", "delete", l.Name())
		}
	}
	for _, rule := range rules() {
		spec := append([]string{"-w", "-t", rule.table, "-C", rule.chain}, rule.spec...)
		for run(ctx, "iptables", spec...) == nil {
			spec[3] = "-D"
			if err := run(ctx, "iptables", spec...); err != nil {
				return err
			}
			spec[3] = "-C"
		}
	}
	return nil
}

// AddressConflict returns an error if another interface of the host already has an address that the cluster would use, or routes to it.
func AddressConflict(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "ip", "-4", "route", "show", "table", "all").Output()
	if err != nil {
		return fmt.Errorf("reading routes: %w", err)
	}
	return conflict(string(out))
}

// conflict looks for a conflict in the output of "ip route". The cluster's routes win over those to larger ranges, as of a VPN, except in
// tables that a rule of the VPN may prefer.
func conflict(routes string) error {
	for line := range strings.Lines(routes) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "dev "+topology.Bridge) {
			continue
		}
		prefix, ok := destination(line)
		preferred := strings.Contains(line, " table ") && !strings.Contains(line, " table local") && prefix.Bits() > 0
		for _, ours := range []string{topology.BridgeSubnet, topology.PodCIDR} {
			if own := netip.MustParsePrefix(ours); ok && (preferred || prefix.Bits() >= own.Bits()) && prefix.Overlaps(own) {
				return fmt.Errorf("the address range %s is taken on this machine by the route %q; remove that route or network", ours, line)
			}
		}
	}
	return nil
}

// destination returns where a route leads. A single address has no length there.
func destination(route string) (netip.Prefix, bool) {
	for field := range strings.FieldsSeq(route) {
		if prefix, err := netip.ParsePrefix(field); err == nil {
			return prefix, true
		}
		if addr, err := netip.ParseAddr(field); err == nil {
			return netip.PrefixFrom(addr, addr.BitLen()), true
		}
		if field == "via" || field == "dev" {
			break
		}
	}
	return netip.Prefix{}, false
}

func ip(ctx context.Context, lines ...string) error { return ipBatch(ctx, nil, lines) }

func ipIn(ctx context.Context, netns string, lines ...string) error {
	return ipBatch(ctx, []string{"-n", netns}, lines)
}

func ipBatch(ctx context.Context, args, lines []string) error {
	cmd := exec.CommandContext(ctx, "ip", append(args, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(lines, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
