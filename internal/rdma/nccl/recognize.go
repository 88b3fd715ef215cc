// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

type rule struct {
	name fail.Reason
	// info: NCCL prints it as INFO too.
	info bool
	// texts are alternatives. "*" stands for anything.
	texts []string
}

// rules are tried in this order. The comments name the source files of their texts, in NVIDIA/nccl's src.
// They are not rows of package known, because a log has millions of lines, for which plain text is fast; docs/reference/nccl.md has what
// they mean.
var rules = []rule{
	// bootstrap.cc; transport/net_socket.cc; misc/socket.cc (2.26 and on).
	{NoSocketInterface, false, []string{"Bootstrap : no socket interface found", "NET/IB : No IP interface found",
		"NET/Socket : No usable listening interface found"}},
	{NoSocketInterface, true, []string{"NET/Socket : no interface found", "no device found*verify NCCL_", "no device found matching NCCL_"}},
	// misc/ibvsymbols.cc, misc/ibvwrap.cc.
	{VerbsLibraryMissing, true, []string{"Failed to open libibverbs"}},
	// transport/net_ib.cc.
	{DeviceUnavailable, false, []string{"NET/IB : Unable to open device", "NET/IB : Unable to query"}},
	{LinkTypesMixed, false, []string{"NET/IB : *incompatible*NICs of only one link type", "NET/IB : Can't merge net devices with different " +
		"link_layer"}},
	{DevicesMismatched, true, []string{"NET/IB : There are mismatched physical devices"}},
	{DevicesMismatched, false, []string{"NET/IB : Local mergedDev*different number of devices", "mixed local Net device counts across ranks"}},
	// transport/net_ib/p2p_resiliency.cc (2.29 and on).
	{DeviceFatal, false, []string{"NET/IB*Device * marked as failed", "NET/IB*failed devices out of"}},
	// plugin/net.cc; init.cc until 2.26.
	{NetworkMissing, false, []string{"Failed to initialize any NET plugin", "Error: network * not found"}},
	// misc/socket.cc.
	{NameUnresolved, false, []string{"Net : error encountered when getting address info"}},
	{ForeignConnection, false, []string{"wrong magic", "valid magic", "socketFinalizeAccept*wrong*type",
		"Bootstrap Root : mismatch in", "Bootstrap Root : rank*has already checked in"}},
	{ForeignConnection, true, []string{"magic mismatch", "Wrong socket type from"}},
	{PeerGone, false, []string{"Connection closed by remote peer", "Connection reset by peer", "Broken pipe"}},
	// misc/shmutils.cc.
	{SharedMemoryFull, false, []string{"shared memory segment*/dev/shm", "failed to extend /dev/shm", "No space left on device"}},
	{SharedMemoryFull, true, []string{"Failed to extend /dev/shm"}},
	{TooManyFiles, false, []string{"Too many open files"}},
	// bootstrap.cc, init.cc, misc/socket.cc.
	{VersionMismatch, false, []string{"Mismatched NCCL version detected", "NCCL version mismatch with remote peer"}},
	{DuplicateGPU, false, []string{"Duplicate GPU detected"}},
	// transport/net_socket.cc, net_ib.cc; bootstrap.cc.
	{CollectiveMismatch, false, []string{"essage truncated : receiv", "collective mismatch error", "posted incorrect receive info"}},
	// graph/paths.cc, transport/p2p.cc and net.cc.
	{GPUPeerAccessOff, true, []string{"P2P is disabled between"}},
	{GPUPeerAccessOff, false, []string{"failed to peer with device"}},
	// transport/nvls.cc.
	{MulticastRefused, false, []string{"nvls.cc: Cuda failure", "nvls.cc: *ultica"}},
	{CUDAFailed, false, []string{"Cuda failure"}},
}

func (r rule) matches(text string, warning bool) bool {
	return (warning || r.info) && slices.ContainsFunc(r.texts, func(pattern string) bool {
		rest := text
		for part := range strings.SplitSeq(pattern, "*") {
			_, after, found := strings.Cut(rest, part)
			if !found {
				return false
			}
			rest = after
		}
		return true
	})
}

var (
	// namedDevice: "hca mlx5_6" (2.23 and on), "on dev mlx5_6:1" (2.26 and on).
	namedDevice = regexp.MustCompile(` (?:hca|on dev) ([^\s:,]+)`)
	// namedPeer: "from peer 10.0.103.7<49892>", "Connect to 10.1.2.3<29500>", "remote peer node-1<57557>",
	// "Call to recv from 10.1.2.3<57557>".
	namedPeer = regexp.MustCompile(`(?:peer|[Cc]onnect to|from) ([^\s<]+)<(\d+)>`)
)

// recognize takes a message of the source file.
func recognize(file, text string, warning bool) (Finding, bool) {
	name := nameOf(file, text, warning)
	if name == "" {
		return Finding{}, false
	}
	finding := newFinding(name, text)
	if m := namedDevice.FindStringSubmatch(text); m != nil {
		finding.Device = clipText(m[1])
	} else if m := asyncEvent.FindStringSubmatch(text); m != nil {
		finding.Device = clipText(m[1])
	}
	if m := namedPeer.FindStringSubmatch(text); m != nil {
		finding.Peer = clipText(m[1])
		finding.Next = strings.NewReplacer("ADDRESS", finding.Peer, "PORT", m[2]).Replace(finding.Next)
	}
	return finding, true
}

func nameOf(file, text string, warning bool) fail.Reason {
	for _, recognizer := range []func(string, bool) fail.Reason{nameOfVerbs, nameOfCompletion, nameOfEvent, nameOfConnection} {
		if name := recognizer(text, warning); name != "" {
			return name
		}
	}
	return firstMatch(rules, file+": "+text, warning)
}

func firstMatch(rules []rule, text string, warning bool) fail.Reason {
	if i := slices.IndexFunc(rules, func(r rule) bool { return r.matches(text, warning) }); i >= 0 {
		return rules[i].name
	}
	return ""
}

// connection is a failed connect: "socketStartConnect: Connect to 10.1.2.3<29500> failed : Connection refused", "socketPollConnect: connect
// to 10.1.2.3<29500> returned No route to host, exceeded error retry count after 35 attempts", "Call to connect returned Connection timed
// out, retrying" (misc/socket.cc; the words differ with each version from 2.16 to 2.30).
var connection = regexp.MustCompile(`(?:[Cc]onnect|socketPollConnect).*(Connection refused|Connection timed out|No route to host|Network ` +
	`is unreachable|Host is unreachable)`)

// nameOfConnection recognizes connections over TCP. "exceeded retries" and "exceeded timeouts"
// (until 2.23) do not name the peer: the first counts refusals, the second timeouts.
func nameOfConnection(text string, warning bool) fail.Reason {
	if !strings.Contains(text, "onnect") || strings.Contains(text, "ibv_") {
		return ""
	}
	m := connection.FindStringSubmatch(text)
	switch {
	case m != nil && strings.Contains(text, "retrying"):
		return ConnectionRetried
	case !warning:
		return ""
	case m != nil && m[1] == "Connection refused", strings.Contains(text, "Connect: exceeded retries"):
		return ConnectionRefused
	case m != nil, strings.Contains(text, "Connect: exceeded timeouts"):
		return PeerUnreachable
	}
	return ""
}
