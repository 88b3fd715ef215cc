package rdma

import (
	"net/netip"
	"strings"
	"testing"
)

func mustGID(text string) netip.Addr { return netip.MustParseAddr(text) }

// Whatever a variable contains, the name derived from it can be part of a path.
func FuzzAllotments(f *testing.F) {
	f.Add(`{"0000:03:00.2":{"generic":{"deviceID":"0000:03:00.2"},"rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","uverbs":"/dev/infiniband/uverbs6","rdma_dev":"mlx5_6"}}}`)
	f.Add(`{"0000:03:00.2":{"rdma":{}},"0000:23:00.2":null}`)
	f.Add(`{"0000:03:00.2":{"rdma":{"rdma_dev":"../../etc","uverbs":"/dev/infiniband/../mem"}}}`)
	f.Add(`{"mlx5_core.sf.4":{}}`)
	f.Add(`{"0000:03:00.2":{"rdma":[]}}`)
	f.Add(`0000:03:00.2,0000:23:00.2`)
	f.Add(` ,`)
	f.Fuzz(func(t *testing.T, value string) {
		var d detector
		given := d.allotments([]string{"PCIDEVICE_X_INFO=" + value, "PATH=" + value})
		for _, a := range given {
			if !pciAddress.MatchString(a.address) || a.variable != "PCIDEVICE_X_INFO" {
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
