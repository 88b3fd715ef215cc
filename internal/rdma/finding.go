package rdma

import (
	"encoding/json"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Findings are the findings about a node, or about several together. Their JSON has the
// keys of the agents' protocol.
type Findings []fail.Finding

type jsonFinding struct {
	Level  fail.Level  `json:"severity"`
	Reason fail.Reason `json:"kind"`
	Text   string      `json:"text"`
	Next   string      `json:"next,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f Findings) MarshalJSON() ([]byte, error) {
	list := make([]jsonFinding, len(f))
	for i, finding := range f {
		list[i] = jsonFinding{finding.Level, finding.Reason, finding.Evidence(), finding.Next}
	}
	return json.Marshal(list)
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Findings) UnmarshalJSON(data []byte) error {
	var list []jsonFinding
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	*f = nil
	for _, finding := range list {
		*f = append(*f, fail.Finding{Level: finding.Level, Reason: finding.Reason, Seen: finding.Text, Next: finding.Next})
	}
	return nil
}

// Print writes the findings as text.
func (f Findings) Print(w io.Writer) {
	for _, finding := range f {
		finding.Print(w)
	}
}

// The reasons of findings in one node. The table of docs/doctor.md has their meanings.
const (
	NoDevice           fail.Reason = "NoDevice"
	DeviceMissing      fail.Reason = "DeviceMissing"
	DeviceRenamed      fail.Reason = "DeviceRenamed"
	DeviceFileMissing  fail.Reason = "DeviceFileMissing"
	VariableUnreadable fail.Reason = "VariableUnreadable"
	InterfacesUnknown  fail.Reason = "InterfacesUnknown"
	NoRail             fail.Reason = "NoRail"
	PortDown           fail.Reason = "PortDown"
	NoGID              fail.Reason = "NoGID"
	HostGID            fail.Reason = "HostGID"
	GIDChoice          fail.Reason = "GIDChoice"
	LinkLayersMixed    fail.Reason = "LinkLayersMixed"
	RatesMixed         fail.Reason = "RatesMixed"
	PCIeBelowMaximum   fail.Reason = "PCIeBelowMaximum"
	PCIeBelowPort      fail.Reason = "PCIeBelowPort"
	SubnetShared       fail.Reason = "SubnetShared"
	MemoryLimited      fail.Reason = "MemoryLimited"
	IOMMUTranslates    fail.Reason = "IOMMUTranslates"
	NoGPUDirect        fail.Reason = "NoGPUDirect"
)

// The reasons of findings where detection and the cluster file differ.
const (
	DevicesDiffer    fail.Reason = "DevicesDiffer"
	InterfacesDiffer fail.Reason = "InterfacesDiffer"
	SettingDiffers   fail.Reason = "SettingDiffers"
)

// The reasons of findings between nodes.
const (
	RailMissing  fail.Reason = "RailMissing"
	NoCommonRail fail.Reason = "NoCommonRail"
	RailDiffers  fail.Reason = "RailDiffers"
	RailOrder    fail.Reason = "RailOrder"
	AddressTwice fail.Reason = "AddressTwice"
)
