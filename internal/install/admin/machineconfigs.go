package admin

import (
	"encoding/base64"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What the MachineConfigs bring.
const (
	// memlockFile is read by CRI-O after its own files, which are numbered lower.
	memlockFile    = "/etc/crio/crio.conf.d/99-memlock"
	memlockContent = "[crio.runtime]\ndefault_ulimits = [\"memlock=-1:-1\"]\n"
	iommuArgument  = "iommu=pt"
)

func memlockName(pool string) string { return "99-" + pool + "-crio-memlock" }
func iommuName(pool string) string   { return "99-" + pool + "-iommu-passthrough" }

// memlockConfig lifts the limit of locked memory for every container of the pool.
func memlockConfig(pool string) *unstructured.Unstructured {
	return machineConfig(memlockName(pool), pool, map[string]any{
		"config": map[string]any{
			"ignition": map[string]any{"version": "3.2.0"},
			"storage": map[string]any{"files": []any{map[string]any{
				"path": memlockFile, "mode": int64(0o644), "overwrite": true,
				"contents": map[string]any{
					"source": "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString([]byte(memlockContent)),
				},
			}}},
		},
	})
}

// iommuConfig has devices of the pool's nodes address memory as it is.
func iommuConfig(pool string) *unstructured.Unstructured {
	return machineConfig(iommuName(pool), pool, map[string]any{
		"config":          map[string]any{"ignition": map[string]any{"version": "3.2.0"}},
		"kernelArguments": []any{iommuArgument},
	})
}

// machineConfig is not of openshift/api's type: that sends every field, and what is
// sent is owned: fips, the kernel's type, the image of the system.
func machineConfig(name, pool string, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "spec": spec,
	}}
	object.SetName(name)
	labels := commonLabels()
	labels["machineconfiguration.openshift.io/role"] = pool
	object.SetLabels(labels)
	return object
}
