package rdma

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// allotment is one PCI function that a device plugin gave the pod.
type allotment struct {
	address string
	// variable is the device plugin's variable with the address.
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
	// plainName is a name of a device, which becomes part of a path.
	plainName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)
)

// pluginInfo is what the SR-IOV network device plugin (k8snetworkplumbingwg) reports of one address (its pkg/infoprovider). rdma exists
// if the pool has isRdma, and may be {}; rdma_dev exists since its version 3.10.
type pluginInfo struct {
	RDMA *struct {
		Device string `json:"rdma_dev"`
		Uverbs string `json:"uverbs"`
	} `json:"rdma"`
}

// allotments reads the variables of device plugins. PCIDEVICE_X holds addresses joined by commas, and PCIDEVICE_X_INFO JSON about the
// same addresses, which wins. A resource may itself be called y_info, so the values distinguish them, not the names.
func (d *detector) allotments(environ []string) []allotment {
	given := map[string]allotment{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		value = strings.TrimSpace(value)
		switch {
		case !strings.HasPrefix(name, pluginPrefix) || value == "":
		case strings.HasPrefix(value, "{"):
			infos, err := readInfo(name, value)
			if err != nil {
				d.found(fail.Note, VariableUnreadable, "", "reading %s: %v: want the JSON of the SR-IOV device plugin", name, err)
			}
			for _, a := range infos {
				given[a.address] = a
			}
		default:
			for address := range strings.SplitSeq(value, ",") {
				address = strings.ToLower(strings.TrimSpace(address))
				if !pciAddress.MatchString(address) {
					d.found(fail.Note, VariableUnreadable, "", "reading %s: %q: want PCI addresses, as in 0000:03:00.2", name, address)
				} else if _, ok := given[address]; !ok {
					given[address] = allotment{address: address, variable: name}
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(given), func(a, b allotment) int { return strings.Compare(a.address, b.address) })
}

// readInfo reads the value of a PCIDEVICE_X_INFO, without names that no device can have.
func readInfo(variable, value string) ([]allotment, error) {
	var infos map[string]pluginInfo
	if err := json.Unmarshal([]byte(value), &infos); err != nil {
		return nil, err
	}
	var result []allotment
	for address, info := range infos {
		address = strings.ToLower(address)
		if !pciAddress.MatchString(address) {
			return nil, fmt.Errorf("%q is no PCI address", address)
		}
		a := allotment{address: address, variable: variable}
		if info.RDMA != nil {
			a.rdma = true
			if plainName.MatchString(info.RDMA.Device) {
				a.device = info.RDMA.Device
			}
			if uverbs, ok := strings.CutPrefix(info.RDMA.Uverbs, deviceFiles+"/"); ok && plainName.MatchString(uverbs) {
				a.uverbs = uverbs
			}
		}
		result = append(result, a)
	}
	return result, nil
}
