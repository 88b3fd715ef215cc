// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func mustGID(text string) netip.Addr { return netip.MustParseAddr(text) }

// Whatever a variable contains, the name derived from it can be part of a path.
func FuzzAllotments(f *testing.F) {
	f.Add(`{"0000:03:00.2":{"generic":{"deviceID":"0000:03:00.2"},"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm",` +
		`"uverbs":"/dev/infiniband/uverbs6","rdma_dev":"mlx5_6"}}}`)
	f.Add(`{"0000:03:00.2":{"rdma":{}},"0000:23:00.2":null}`)
	f.Add(`{"0000:03:00.2":{"rdma":{"rdma_dev":"../../etc","uverbs":"/dev/infiniband/../mem"}}}`)
	f.Add(`{"mlx5_core.sf.4":{}}`)
	f.Add(`{"0000:03:00.2":{"rdma":[]}}`)
	f.Add(`{"mlx5_core.sf.4":{"rdma":{"rdma_dev":"mlx5_8"}},"eth0":{}}`)
	f.Add(`mlx5_core.sf.4,../../etc.sf.4`)
	f.Add(`0000:03:00.2,0000:23:00.2`)
	f.Add(` ,`)
	f.Fuzz(func(t *testing.T, value string) {
		var d detector
		given := d.allotments([]string{"PCIDEVICE_X_INFO=" + value, "PATH=" + value})
		for _, a := range given {
			if functionID(a.id) != a.id || strings.Contains(a.id, "/") || a.variable != "PCIDEVICE_X_INFO" {
				t.Errorf("allotted %+v", a)
			}
			for _, name := range []string{a.device, a.uverbs} {
				if strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
					t.Errorf("name %q can lead elsewhere", name)
				}
			}
		}
		if text := strings.TrimSpace(value); text != "" && !strings.HasPrefix(text, "{") && len(given) == 0 && len(d.facts.Findings) == 0 {
			t.Errorf("%q gives nothing, and nothing reports that", value)
		}
	})
}

// TestOddFunctions: what cannot be read of a variable costs only itself.
func TestOddFunctions(t *testing.T) {
	const vf = `"0000:03:00.2":{"generic":{"deviceID":"0000:03:00.2"},"rdma":{"uverbs":"/dev/infiniband/uverbs6","rdma_dev":"mlx5_6"}}`
	for _, tc := range []struct {
		name, value string
		want        []string
		odd         int
	}{
		{"scalable functions", "mlx5_core.sf.4,mlx5_core.sf.5", []string{"mlx5_core.sf.4", "mlx5_core.sf.5"}, 0},
		{"their JSON", `{"mlx5_core.sf.4":{"generic":{"deviceID":"mlx5_core.sf.4"},"rdma":{"rdma_dev":"mlx5_8"}}}`, []string{"mlx5_core.sf.4"},
			0},
		{"both kinds", `{` + vf + `,"mlx5_core.sf.4":{"rdma":{}}}`, []string{"0000:03:00.2", "mlx5_core.sf.4"}, 0},
		{"one odd key", `{` + vf + `,"fake-device":{"rdma":{}}}`, []string{"0000:03:00.2"}, 1},
		{"an odd value", `{` + vf + `,"0000:23:00.2":{"rdma":[]}}`, []string{"0000:03:00.2"}, 1},
		{"an empty value", `{` + vf + `,"0000:23:00.2":null}`, []string{"0000:03:00.2", "0000:23:00.2"}, 0},
		{"one odd ID", "0000:03:00.2,virtio0, 0000:23:00.2 ", []string{"0000:03:00.2", "0000:23:00.2"}, 1},
		{"another domain and capitals", "10000:0A:00.2,0000:AF:00.2", []string{"0000:af:00.2", "10000:0a:00.2"}, 0},
		{"other drivers", "ice.sf.1,bnxt_en.rdma.0,mlx5_core.eth-rep.2", []string{"bnxt_en.rdma.0", "ice.sf.1", "mlx5_core.eth-rep.2"}, 0},
		{"a path", "../../mem.sf.1", nil, 1},
		{"the beginning of JSON", `{` + vf, nil, 1},
	} {
		var d detector
		var got []string
		for _, a := range d.allotments([]string{"PCIDEVICE_NVIDIA_COM_RAIL_INFO=" + tc.value}) {
			got = append(got, a.id)
		}
		if !slices.Equal(got, tc.want) || len(d.facts.Findings) != tc.odd {
			t.Errorf("%s: got %q and %+v; want %q and %d findings", tc.name, got, d.facts.Findings, tc.want, tc.odd)
		}
	}
}
