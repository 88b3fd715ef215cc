// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/json"
	"strings"
)

// pluginInfo describes one address in the format of the SR-IOV network device plugin
// (k8snetworkplumbingwg/sriov-network-device-plugin:pkg/infoprovider).
type pluginInfo struct {
	Generic map[string]string `json:"generic"`
	RDMA    map[string]string `json:"rdma"`
}

// Variables returns the environment variables that the SR-IOV network device plugin sets for functions of one resource.
func Variables(resource string, functions []Function, fault Fault) (map[string]string, error) {
	name := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(resource))
	var addresses []string
	infos := map[string]pluginInfo{}
	for _, f := range functions {
		addresses = append(addresses, f.Address())
		info := pluginInfo{Generic: map[string]string{"deviceID": f.Address()}, RDMA: map[string]string{}}
		if fault != EmptyInfo {
			for _, file := range []string{"uverbs", "umad", "issm"} {
				info.RDMA[file] = "/dev/infiniband/" + f.file(file)
			}
			info.RDMA["rdma_cm"] = "/dev/infiniband/rdma_cm"
			info.RDMA["rdma_dev"] = f.Device()
		}
		infos[f.Address()] = info
	}
	variables := map[string]string{name: strings.Join(addresses, ",")}
	if fault != NoInfo {
		content, err := json.Marshal(infos)
		if err != nil {
			return nil, err
		}
		variables[name+"_INFO"] = string(content)
	}
	return variables, nil
}
