// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/golden"
)

func TestPrint(t *testing.T) {
	expected := Expected{Devices: []string{"mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"}, GIDIndex: "3", GDRLevel: "5", CrossNIC: "1",
		IBTimeout: "22"}
	hot := barcelona(1, names4...)
	hot.add(nic{name: "mlx5_0", uverbs: "uverbs0", address: "0000:43:00.0", physical: true, noFile: true})
	hot.overwrite("mlx5_10/ports/1/state", "1: DOWN")
	hot.overwrite("mlx5_10/ports/1/phys_state", "2: Polling")
	hot.overwrite("0000:23:00.0/current_link_speed", "16.0 GT/s PCIe")
	hot.memlock("8388608", "8388608", "00000000000005fb")
	for name, host := range map[string]*host{"fine": barcelona(0, names4...), "faults": hot, "nothing": newHost()} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			facts := host.detect(expected)
			facts.NVLink = map[string]Answer{"fine": Yes, "faults": No}[name]
			facts.SysRoot = map[string]string{"faults": "/run/sysfs"}[name]
			facts.Print(&out)
			out.WriteByte('\n')
			NewPlan([]Facts{facts}, 0, expected, map[string]string{"NCCL_DEBUG": "INFO"}).Print(&out)
			line, _ := facts.Check()
			out.WriteString("\n" + line + "\n")
			path := filepath.Join("testdata", name+".txt")
			golden.File(t, path, out.String())
		})
	}
}
