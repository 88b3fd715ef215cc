// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// allotment is one function that a device plugin gave the pod.
type allotment struct {
	// id is a PCI address, or the name of an auxiliary device.
	id string
	// variable is the device plugin's variable with the ID.
	variable string
	// device and uverbs are the plugin's names for it, empty if it gives none.
	device, uverbs string
	// rdma is true if the plugin gave it for RDMA.
	rdma bool
}

// pluginPrefix begins the variables of device plugins. The resource's name follows, in upper case
// with "." and "/" replaced. It keeps its hyphens, so no shell can read the variable.
const pluginPrefix = "PCIDEVICE_"

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	// auxiliaryDevice is a scalable function, as in mlx5_core.sf.4: a driver, a name and a number (linux:drivers/base/auxiliary.c).
	auxiliaryDevice = regexp.MustCompile(`^\w[\w-]*\.[\w-]+\.\d+$`)
	// plainName is a name of a device, which becomes part of a path.
	plainName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)
)

// functionID returns the ID of a function in its usual form, "" if the text is none.
func functionID(text string) string {
	text = strings.TrimSpace(text)
	if address := strings.ToLower(text); pciAddress.MatchString(address) {
		return address
	}
	if auxiliaryDevice.MatchString(text) {
		return text
	}
	return ""
}

// pluginInfo is what the SR-IOV network device plugin (k8snetworkplumbingwg) reports of one function (its pkg/infoprovider). rdma exists
// if the pool has isRdma, and may be {}; rdma_dev exists since its version 3.10.
type pluginInfo struct {
	RDMA *struct {
		Device string `json:"rdma_dev"`
		Uverbs string `json:"uverbs"`
	} `json:"rdma"`
}

// allotments reads the variables of device plugins. PCIDEVICE_X holds IDs joined by commas, and PCIDEVICE_X_INFO JSON about the
// same functions, which wins. A resource may itself be called y_info, so the values distinguish them, not the names.
func (d *detector) allotments(environ []string) []allotment {
	given := map[string]allotment{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		value = strings.TrimSpace(value)
		switch {
		case !strings.HasPrefix(name, pluginPrefix) || value == "":
		case strings.HasPrefix(value, "{"):
			infos, odd, err := readInfo(name, value)
			if err != nil {
				d.found(fail.Note, VariableUnreadable, "", "reading %s: %v: want the JSON of the SR-IOV device plugin", name, err)
			}
			for _, key := range odd {
				d.unreadable(name, key)
			}
			for _, a := range infos {
				given[a.id] = a
			}
		default:
			for text := range strings.SplitSeq(value, ",") {
				id := functionID(text)
				if id == "" {
					d.unreadable(name, text)
				} else if _, ok := given[id]; !ok {
					given[id] = allotment{id: id, variable: name}
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(given), func(a, b allotment) int { return strings.Compare(a.id, b.id) })
}

func (d *detector) unreadable(variable, id string) {
	d.found(fail.Note, VariableUnreadable, "",
		"reading %s: %q: want PCI addresses or auxiliary devices, as in 0000:03:00.2 and mlx5_core.sf.4", variable, id)
}

// readInfo reads the value of a PCIDEVICE_X_INFO, without names that no device can have. odd are the keys of what cannot be read.
func readInfo(variable, value string) (given []allotment, odd []string, err error) {
	var infos map[string]json.RawMessage
	if err := json.Unmarshal([]byte(value), &infos); err != nil {
		return nil, nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(infos)) {
		var info pluginInfo
		id := functionID(key)
		if json.Unmarshal(infos[key], &info) != nil || id == "" {
			odd = append(odd, key)
			continue
		}
		a := allotment{id: id, variable: variable}
		if info.RDMA != nil {
			a.rdma = true
			if plainName.MatchString(info.RDMA.Device) {
				a.device = info.RDMA.Device
			}
			if uverbs, ok := strings.CutPrefix(info.RDMA.Uverbs, deviceFiles+"/"); ok && plainName.MatchString(uverbs) {
				a.uverbs = uverbs
			}
		}
		given = append(given, a)
	}
	return given, odd, nil
}
