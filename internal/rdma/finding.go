// SPDX-License-Identifier: Apache-2.0

package rdma

import "github.com/ml-dev-env/ml-dev-env/internal/fail"

// The reasons of findings. The table of docs/reference/findings.md has their meanings.
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

	// Detection and the cluster file differ.
	DevicesDiffer    fail.Reason = "DevicesDiffer"
	InterfacesDiffer fail.Reason = "InterfacesDiffer"
	SettingDiffers   fail.Reason = "SettingDiffers"
	MTUDiffers       fail.Reason = "MTUDiffers"

	// Nodes differ.
	RailMissing  fail.Reason = "RailMissing"
	NoCommonRail fail.Reason = "NoCommonRail"
	RailDiffers  fail.Reason = "RailDiffers"
	RailOrder    fail.Reason = "RailOrder"
	AddressTwice fail.Reason = "AddressTwice"
)
