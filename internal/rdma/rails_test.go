package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// matched shows rails as "network: names on node 0 | names on node 1".
func matched(nodes []Facts) []string {
	var result []string
	for _, rail := range Rails(nodes) {
		text := rail.Network.String() + ":"
		for n, ports := range rail.Ports {
			if n > 0 {
				text += " |"
			}
			for _, port := range ports {
				text += " " + port.Device.Name
			}
		}
		result = append(result, text)
	}
	return result
}

func TestRails(t *testing.T) {
	// The second node has its rails under other names, in another order, on other interfaces.
	second := func(change func(i int, n *nic)) *host {
		h := newHost()
		for i, n := range rails4(1, "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5") {
			n.ip = fmt.Sprintf("10.0.%d.8/24", 106-i)
			change(i, &n)
			h.add(n)
			h.allot(fmt.Sprintf("openshift.io/r%d", i), n.address, "")
		}
		return h
	}
	same := []string{"10.0.103.0/24: mlx5_6 | mlx5_5", "10.0.104.0/24: mlx5_7 | mlx5_4", "10.0.105.0/24: mlx5_10 | mlx5_3", "10.0.106.0/24: mlx5_11 | mlx5_2"}
	for _, tc := range []struct {
		name     string
		nodes    []Facts
		want     []string
		findings []string
	}{
		{"other names", pair(barcelona(0, names4...), barcelona(1, "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5")),
			[]string{"10.0.103.0/24: mlx5_6 | mlx5_2", "10.0.104.0/24: mlx5_7 | mlx5_3", "10.0.105.0/24: mlx5_10 | mlx5_4", "10.0.106.0/24: mlx5_11 | mlx5_5"}, nil},
		{"another order", pair(barcelona(0, names4...), second(func(int, *nic) {})), same, []string{"degraded RailOrder"}},
		{"another rate", pair(barcelona(0, names4...), second(func(i int, n *nic) {
			if i == 0 {
				n.rate = "100 Gb/sec (4X EDR)"
			}
		})), same, []string{"degraded RailDiffers", "degraded RailOrder"}},
		{"one down", pair(barcelona(0, names4...), second(func(i int, n *nic) {
			if i < 3 {
				n.state = "1: DOWN"
			}
		})), []string{"10.0.103.0/24: mlx5_6 | mlx5_5", "10.0.104.0/24: mlx5_7 |", "10.0.105.0/24: mlx5_10 |", "10.0.106.0/24: mlx5_11 |"},
			[]string{"degraded RailMissing", "degraded RailMissing", "degraded RailMissing"}},
		{"an address twice", pair(barcelona(0, names4...), second(func(i int, n *nic) {
			if i == 3 {
				n.ip = "10.0.103.7/24"
			}
		})), same, []string{"broken AddressTwice", "degraded RailOrder"}},
		{"nothing in common", pair(barcelona(0, names4...), newHost()),
			[]string{"10.0.103.0/24: mlx5_6 |", "10.0.104.0/24: mlx5_7 |", "10.0.105.0/24: mlx5_10 |", "10.0.106.0/24: mlx5_11 |"},
			[]string{"broken NoCommonRail", "degraded RailMissing", "degraded RailMissing", "degraded RailMissing", "degraded RailMissing"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, matched(tc.nodes)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			findings := Compare(tc.nodes)
			if diff := cmp.Diff(tc.findings, kinds(findings)); diff != "" {
				t.Errorf("findings (-want +got):\n%s%v", diff, findings)
			}
		})
	}
}

func TestRailsOfInfiniBand(t *testing.T) {
	node := func(names ...string) Facts {
		h := newHost()
		for i, name := range names {
			h.add(nic{name: name, uverbs: "uverbs" + name[5:], address: fmt.Sprintf("0000:%d3:00.0", i), physical: true, infiniBand: true})
		}
		return h.detect(Expected{})
	}
	nodes := []Facts{node("mlx5_2", "mlx5_3"), node("mlx5_6", "mlx5_7")}
	if diff := cmp.Diff([]string{"fe80::/64: mlx5_2 mlx5_3 | mlx5_6 mlx5_7"}, matched(nodes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if Isolated(nodes) || Compare(nodes) != nil {
		t.Errorf("one fabric is isolated %v, findings %v", Isolated(nodes), Compare(nodes))
	}
}

// Jumbo frames on one side alone.
func TestCompareMTU(t *testing.T) {
	small := barcelona(1, names4...)
	small.overwrite("net/net2/mtu", "1500")
	if diff := cmp.Diff([]string{"degraded RailDiffers"}, kinds(Compare(pair(barcelona(0, names4...), small)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExpectedBandwidth(t *testing.T) {
	one := func(rate, speed, width string) Facts {
		h := newHost()
		h.add(nic{name: "mlx5_6", uverbs: "uverbs6", address: "0000:03:00.2", netdev: "net1", ip: "10.0.103.7/24", rate: rate, speed: speed, width: width})
		return h.detect(Expected{})
	}
	four := barcelona(0, names4...).detect(Expected{})
	three := barcelona(1, names4...)
	three.overwrite("mlx5_6/ports/1/state", "1: DOWN")
	for _, tc := range []struct {
		name     string
		nodes    []Facts
		expected Expected
		want     string
	}{
		{"400G on PCIe 5.0", []Facts{one("", "", "")}, Expected{}, "48.5 GB/s (45.2 GiB/s)"},
		{"400G on PCIe 4.0", []Facts{one("", "16.0 GT/s PCIe", "")}, Expected{}, "26.0 GB/s (24.2 GiB/s)"},
		{"400G on half of PCIe 5.0", []Facts{one("", "", "8")}, Expected{}, "26.0 GB/s (24.2 GiB/s)"},
		{"a link that is not known", []Facts{one("", "Unknown", "0")}, Expected{}, "48.5 GB/s (45.2 GiB/s)"},
		{"100G", []Facts{one("100 Gb/sec (4X EDR)", "", "")}, Expected{}, "12.1 GB/s (11.3 GiB/s)"},
		{"four of 400G", []Facts{four, four}, Expected{}, "194.0 GB/s (180.7 GiB/s)"},
		{"the rails that all have", []Facts{four, three.detect(Expected{})}, Expected{}, "145.5 GB/s (135.5 GiB/s)"},
		{"the cluster file's figure", []Facts{four, four}, Expected{Bandwidth: 200 * GBps}, "200.0 GB/s (186.3 GiB/s)"},
		{"none", []Facts{newHost().detect(Expected{})}, Expected{}, "0.0 GB/s (0.0 GiB/s)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ExpectedBandwidth(tc.nodes, tc.expected).String(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// Of nodes that do not all answer, findings name those that do by their own numbers.
func TestCompareSome(t *testing.T) {
	findings := CompareSome(pair(barcelona(0, names4...), newHost()), []int{0, 2})
	if len(findings) == 0 || !slices.ContainsFunc(findings, func(f fail.Finding) bool { return strings.Contains(f.Seen, "node 2 has 0 usable ports") }) {
		t.Errorf("got %v, want what node 2 lacks", findings)
	}
}
