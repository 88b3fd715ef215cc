// SPDX-License-Identifier: Apache-2.0

package checkfabric

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
)

// output is the output of perftest 4.5.
const output = `---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_6
 Number of qps   : 1		Transport type : IB
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0127 PSN 0x8b9f12 RKey 0x17fdff VAddr 0x007f7a5c0a5000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:103:05
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      431824           0.00               226.40		   0.431824
---------------------------------------------------------------------------------------
`

// hostCheck returns a check of two nodes with two common rails, whose ib_write_bw is the shell script.
func hostCheck(t *testing.T, script string) (c *Check, dir string, log *strings.Builder) {
	t.Helper()
	dir = t.TempDir()
	if script != "" {
		program := "#!/bin/sh\ncd '" + dir + "'\necho \"$NODE_RANK $*\" >> calls\nfor last; do :; done\n" + script
		if err := os.WriteFile(filepath.Join(dir, writeProgram), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, _, log = start(t, 2, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")))
	c.devices, c.settings.Mode, c.began = devices(), agent.RDMA, time.Now()
	c.settings.Expected.TrafficClass = "106"
	c.report.Nodes, c.facts = 2, make([]agent.Facts, 2)
	for node := range c.devices {
		for d := range c.devices[node].Devices {
			c.devices[node].Devices[d].Ports[0].GIDIndex = 3
		}
	}
	return c, dir, log
}

// The client of the first rail starts before the server listens. The program's output becomes a measurement.
func TestHostRDMA(t *testing.T) {
	c, dir, log := hostCheck(t, `
case "$last" in
-*) exec sleep 20;; # the servers
*) if mkdir once 2>/dev/null; then echo "Couldn't connect to $last:30000" >&2; exit 1; fi
   cat <<END
`+output+`END
esac
`)
	if err := c.measureHosts(t.Context(), c.rails()); err != nil {
		t.Fatal(err)
	}
	m := fabric.Measurement{Operation: fabric.HostRDMA, Scope: fabric.ByRail, Pair: fabric.Pair{0, 1}, Bytes: 65536, Ranks: 2, Time: 2315,
		Iterations: 431824}
	second := m
	second.Rail = 1
	if diff := cmp.Diff([]fabric.Measurement{m, second}, c.report.Measurements); diff != "" {
		t.Fatalf("measurements (-want +got):\n%s\n%s", diff, log)
	}
	if got := m.Bandwidth().String(); got != "28.3 GB/s" {
		t.Errorf("226.40 Gb/s are %s, want 28.3 GB/s", got)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1 -d mlx5_3 -i 1 -F --report_gbits -D 1 -p 29510 -x 3 --tclass=106\n",
		"0 -d mlx5_6 -i 1 -F --report_gbits -D 1 -p 29510 -x 3 --tclass=106 " + c.Hosts[1] + "\n",
		"0 -d mlx5_7 -i 1 -F --report_gbits -D 1 -p 29511 -x 3 --tclass=106 " + c.Hosts[1] + "\n",
	} {
		if !strings.Contains(string(calls), want) {
			t.Errorf("the calls are\n%swant %s", calls, want)
		}
	}
	if got := strings.Count(string(calls), c.Hosts[1]); got != 3 {
		t.Errorf("the client was started %d times, want 3: the first time nothing listens\n%s", got, calls)
	}
}

// A rail that cannot be measured is logged, and does not count against the network.
func TestHostRDMANotMeasured(t *testing.T) {
	const timeForNoMeasurement = 5 * time.Second
	for _, test := range []struct {
		name, script string
		change       func(*Check)
		want         string
	}{
		{"no program", "", func(*Check) {}, "the training image has no ib_write_bw"},
		{"it fails", "echo ' Unable to find the Infiniband/RoCE device'; exit 1", func(*Check) {
		}, "was not measured on rail net1 (10.0.103.0/24): ib_write_bw ended without a result"},
		{"no time", "", func(c *Check) { c.Bound = timeForNoMeasurement }, "There is no time left"},
		{"over TCP", "", func(c *Check) { c.settings.Mode = agent.TCP }, ""},
		{"in a quick check", "", func(c *Check) { c.Quick = true }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _, log := hostCheck(t, test.script)
			test.change(c)
			if err := c.measureHosts(t.Context(), c.rails()); err != nil || len(c.report.Measurements) != 0 {
				t.Errorf("got %v and %+v, want nothing", err, c.report.Measurements)
			}
			if !strings.Contains(log.String(), test.want) || test.want == "" && log.Len() > 0 {
				t.Errorf("the log is %q, want %q", log, test.want)
			}
		})
	}
}

func TestParseWrite(t *testing.T) {
	for _, text := range []string{"", " #bytes     #iterations", "1 2 3 4", "0 1 2 3 4", "65536 1 0.00 0.00 0.0", "65536 1 NaN NaN NaN",
		"65536 1 Inf Inf Inf", "1e300 1 1 1 1", "65536 1 2 3 4 x"} {
		if m, ok := parseWrite([]string{text}); ok {
			t.Errorf("%q became %+v", text, m)
		}
	}
}
