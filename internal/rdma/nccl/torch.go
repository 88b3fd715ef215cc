// SPDX-License-Identifier: Apache-2.0

package nccl

import "strings"

// torchRules recognize what torch.distributed and gloo print if ranks do not find or reach each other
// (pytorch/pytorch:torch/csrc/distributed/c10d/socket.cpp, pytorch/gloo:gloo/transport/tcp). The words behind them are the C library's.
var torchRules = []rule{
	// gloo's device (transport/tcp/device.cc, helpers of ProcessGroupGloo.cpp).
	{NoSocketInterface, false, []string{"Unable to find address for", "Unable to find interface for", "Couldn't find interface"}},
	// getaddrinfo.
	{NameUnresolved, false, []string{"Name or service not known", "Temporary failure in name resolution",
		"No address associated with hostname",
		"cannot be retrieved (gai error"}},
	{PeerUnreachable, false, []string{"No route to host", "Network is unreachable", "onnection timed out", "client socket has timed out",
		"onnect*timed out"}},
	{ConnectionRefused, false, []string{"onnection refused"}},
	{PeerGone, false, []string{"Connection closed by peer", "Connection reset by peer", "Broken pipe"}},
	{CollectiveTimeout, false, []string{"Timed out waiting", "ocket Timeout", "timed out after"}},
	// NCCL's result in an exception (torch/csrc/distributed/c10d/NCCLUtils.cpp), and a collective that does not end (ProcessGroupNCCL.cpp).
	{CollectiveTimeout, false, []string{"Watchdog caught collective operation timeout"}},
	{RemoteError, false, []string{"ncclRemoteError"}},
	{SystemError, false, []string{"ncclSystemError"}},
	{CUDAFailed, false, []string{"ncclUnhandledCudaError"}},
}

// FromTorch finds what an error of torch.distributed shows of the network, as of gloo, which has no log of its own.
func FromTorch(text string) (Finding, bool) {
	name := firstMatch(torchRules, text, true)
	return newFinding(name, strings.TrimSpace(text)), name != ""
}

// FromError finds what NCCL's own words in an error of torch show, or its warnings among the process' last lines, if they name the failure
// and not a consequence of it.
func FromError(text string, tail []string) (Finding, bool) {
	_, words, ok := strings.Cut(text, "; nccl")
	if !ok {
		return Finding{}, false
	}
	names := func(f Finding, ok bool) bool { return ok && !f.Consequence && f.Reason != CUDAFailed }
	if found, ok := recognize("", words, true); names(found, ok) {
		return found, true
	}
	for _, line := range tail {
		for _, m := range messages(line, false) {
			if found, ok := recognize(m.file, m.text, m.warning); m.warning && names(found, ok) {
				return found, true
			}
		}
	}
	return Finding{}, false
}
