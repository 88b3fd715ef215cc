// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func TestFromTorch(t *testing.T) {
	for text, want := range map[string]fail.Reason{
		"RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address " +
			"for: net1": NoSocketInterface,
		"[W socket.cpp:601] [c10d] The IPv6 network addresses of (env-0.env-headless.ns.svc, 29500) cannot be retrieved (gai error: -2 - Name " +
			"or service not known).": NameUnresolved,
		"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:28703: Connection " +
			"refused": ConnectionRefused,
		"torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.128.1.52, " +
			"29500).": PeerUnreachable,
		"RuntimeError: [c10d] connect() to 10.128.1.52 failed: No route " +
			"to host": PeerUnreachable,
		"RuntimeError: [./gloo/transport/tcp/pair.cc:534] Connection closed by peer " +
			"[10.128.1.52]:52868": PeerGone,
		"RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to " +
			"complete": CollectiveTimeout,
		"torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a " +
			"network error": RemoteError,
		"ncclSystemError: System call (e.g. socket, malloc) or external library call failed or " +
			"device error.": SystemError,
		"[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, " +
			"Timeout(ms)=600000)": CollectiveTimeout,
		"ValueError: the loss is nan": "",
	} {
		finding, found := FromTorch(text)
		if finding.Reason != want || found != (want != "") {
			t.Errorf("%q: got %q, want %q", text, finding.Reason, want)
		}
		if found && (finding.Cause == "" || finding.Next == "") {
			t.Errorf("%q: %s has no explanation", text, finding.Reason)
		}
	}
}
