// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"maps"
	"strings"
)

// This file has all variables of NCCL and gloo whose values do not depend on the devices of a node. Those
// that do are derived by rdma.NewPlan.

// GlooInterface is gloo's variable for its one interface.
const GlooInterface = "GLOO_SOCKET_IFNAME"

// logSubsystems are those whose messages show which ranks use which transport.
const logSubsystems = "INIT,BOOTSTRAP,ENV,NET"

// ExactHCA returns the NCCL_IB_HCA that selects these devices and no others. Without "=", mlx5_1 also matches mlx5_10.
func ExactHCA(devices ...string) string { return "=" + strings.Join(devices, ",") }

// OfPods returns what pods get in every mode: the cluster file's debug level and P2P level, if they are not empty.
func OfPods(debug, p2pLevel string) map[string]string {
	return withValues(map[string]string{"NCCL_DEBUG": debug, P2PLevel: p2pLevel})
}

func withValues(env map[string]string) map[string]string {
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	return env
}

// P2PLevel is NCCL's variable for the largest distance at which GPUs of a node reach each other directly.
const P2PLevel = "NCCL_P2P_LEVEL"

// UnsetP2P reports whether the level must not be set for so many GPUs of a node: NVL, unless NVLink is seen to join them, only turns
// off transfers over PCIe.
func UnsetP2P(level string, gpus int, nvLink bool) bool { return level == "NVL" && gpus > 1 && !nvLink }

// SocketsOnly returns the variables with which ranks use TCP sockets only. interfaces is a value of
// NCCL_SOCKET_IFNAME; if it is empty, NCCL chooses.
func SocketsOnly(interfaces string) map[string]string {
	return withValues(map[string]string{"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": interfaces, GlooInterface: glooInterface(interfaces)})
}

// glooInterface returns the interface for gloo if NCCL's setting names one. gloo takes one whole name, NCCL a list of
// prefixes ("eth"), of names ("=eth0") or of exclusions ("^lo,docker0"). The result of an exclusion differs by node, so
// the agent finds the interface that has the pod's address.
func glooInterface(interfaces string) string {
	if strings.HasPrefix(interfaces, "^") {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(interfaces, "="), ",")
	return first
}

// OverSockets changes the variables of ranks that would use RDMA, so that they use TCP sockets on the
// interface. If it is empty, NCCL chooses.
func OverSockets(env map[string]string, netdev string) {
	if netdev != "" {
		netdev = "=" + netdev
	}
	maps.Copy(env, SocketsOnly(netdev))
	env["NCCL_NET"] = socketNetwork
}

// MeasureWire makes NCCL use rings: trees and NVLSTree can exceed the rate of the wire.
func MeasureWire(env map[string]string) { env["NCCL_ALGO"] = "Ring" }

// UseRail limits NCCL to one RDMA device. The ranks meet on netdev; if it is empty, where they would have met.
func UseRail(env map[string]string, hca, netdev string) {
	env["NCCL_IB_HCA"] = ExactHCA(hca)
	if netdev != "" {
		env["NCCL_SOCKET_IFNAME"] = "=" + netdev
	}
}

// SetLogFiles has NCCL write what it does into files that begin with prefix, one for each process. It leaves an
// environment that already names a file as it is.
func SetLogFiles(env map[string]string, prefix string) {
	if env["NCCL_DEBUG_FILE"] != "" {
		return
	}
	// NCCL puts host and process ID in.
	env["NCCL_DEBUG_FILE"] = prefix + "%h-%p.log"
	if level := strings.ToUpper(env["NCCL_DEBUG"]); level != "INFO" && level != "ABORT" && level != "TRACE" {
		env["NCCL_DEBUG"] = "INFO"
	}
	switch given := env["NCCL_DEBUG_SUBSYS"]; {
	case given == "":
		env["NCCL_DEBUG_SUBSYS"] = logSubsystems
	case !strings.HasPrefix(given, "^"):
		env["NCCL_DEBUG_SUBSYS"] = logSubsystems + "," + given
	}
}
