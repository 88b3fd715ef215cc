package nccl

import (
	"regexp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

type rule struct {
	name fail.Reason
	// words are all in it, in this order.
	words []string
	// info: NCCL prints it as INFO too.
	info bool
}

// rules are tried in this order. The comments name the source files of their words, in NVIDIA/nccl's src.
var rules = []rule{
	// bootstrap.cc; transport/net_socket.cc; misc/socket.cc (2.26 and on).
	{name: NoSocketInterface, words: []string{"Bootstrap : no socket interface found"}},
	{name: NoSocketInterface, words: []string{"NET/Socket : no interface found"}, info: true},
	{name: NoSocketInterface, words: []string{"NET/IB : No IP interface found"}},
	{name: NoSocketInterface, words: []string{"no device found", "verify NCCL_"}, info: true},
	{name: NoSocketInterface, words: []string{"no device found matching NCCL_"}, info: true},
	// misc/ibvsymbols.cc, misc/ibvwrap.cc.
	{name: VerbsLibraryMissing, words: []string{"Failed to open libibverbs"}, info: true},
	// transport/net_ib.cc.
	{name: DeviceUnavailable, words: []string{"NET/IB : Unable to open device"}},
	{name: DeviceUnavailable, words: []string{"NET/IB : Unable to query"}},
	{name: LinkTypesMixed, words: []string{"NET/IB : ", "incompatible", "NICs of only one link type"}},
	{name: LinkTypesMixed, words: []string{"NET/IB : Can't merge net devices with different link_layer"}},
	{name: DevicesMismatched, words: []string{"NET/IB : There are mismatched physical devices"}, info: true},
	{name: DevicesMismatched, words: []string{"NET/IB : Local mergedDev", "different number of devices"}},
	// plugin/net.cc; init.cc until 2.26.
	{name: NetworkMissing, words: []string{"Failed to initialize any NET plugin"}},
	{name: NetworkMissing, words: []string{"Error: network ", " not found"}},
	// misc/socket.cc.
	{name: NameUnresolved, words: []string{"Net : error encountered when getting address info"}},
	{name: ForeignConnection, words: []string{"wrong magic"}},
	{name: ForeignConnection, words: []string{"valid magic"}},
	{name: ForeignConnection, words: []string{"magic mismatch"}, info: true},
	{name: ForeignConnection, words: []string{"socketFinalizeAccept", "wrong", "type"}},
	{name: ForeignConnection, words: []string{"Wrong socket type from"}, info: true},
	{name: PeerGone, words: []string{"Connection closed by remote peer"}},
	{name: PeerGone, words: []string{"Connection reset by peer"}},
	{name: PeerGone, words: []string{"Broken pipe"}},
	// misc/shmutils.cc.
	{name: SharedMemoryFull, words: []string{"shared memory segment", "/dev/shm"}},
	{name: SharedMemoryFull, words: []string{"failed to extend /dev/shm"}},
	{name: SharedMemoryFull, words: []string{"Failed to extend /dev/shm"}, info: true},
	{name: SharedMemoryFull, words: []string{"No space left on device"}},
	{name: TooManyFiles, words: []string{"Too many open files"}},
	// bootstrap.cc, init.cc, misc/socket.cc.
	{name: VersionMismatch, words: []string{"Mismatched NCCL version detected"}},
	{name: VersionMismatch, words: []string{"NCCL version mismatch with remote peer"}},
	{name: DuplicateGPU, words: []string{"Duplicate GPU detected"}},
	// transport/net_socket.cc, net_ib.cc; bootstrap.cc.
	{name: CollectiveMismatch, words: []string{"essage truncated : receiv"}},
	{name: CollectiveMismatch, words: []string{"collective mismatch error"}},
	{name: CollectiveMismatch, words: []string{"posted incorrect receive info"}},
	// graph/paths.cc.
	{name: GPUPeerAccessOff, words: []string{"P2P is disabled between"}, info: true},
	{name: CUDAFailed, words: []string{"Cuda failure"}},
}

// plainRules are for lines without a header: torch prints NCCL's result in the text of its
// exception (torch/csrc/distributed/c10d/NCCLUtils.cpp), and its own word about a collective
// that does not end (ProcessGroupNCCL.cpp).
var plainRules = []rule{
	{name: CollectiveTimeout, words: []string{"Watchdog caught collective operation timeout"}},
	{name: RemoteError, words: []string{"ncclRemoteError"}},
	{name: SystemError, words: []string{"ncclSystemError"}},
	{name: CUDAFailed, words: []string{"ncclUnhandledCudaError"}},
}

func (r rule) matches(text string, warning bool) bool {
	if !warning && !r.info {
		return false
	}
	for _, word := range r.words {
		_, after, found := strings.Cut(text, word)
		if !found {
			return false
		}
		text = after
	}
	return true
}

var (
	// namedDevice: "hca mlx5_6" (2.23 and on), "on dev mlx5_6:1" (2.26 and on).
	namedDevice = regexp.MustCompile(` (?:hca|on dev) ([^\s:,]+)`)
	// namedPeer: "from peer 10.0.103.7<49892>", "Connect to 10.1.2.3<29500>", "remote peer node-1<57557>",
	// "Call to recv from 10.1.2.3<57557>".
	namedPeer = regexp.MustCompile(`(?:peer|[Cc]onnect to|from) ([^\s<]+)<(\d+)>`)
)

func recognize(text string, warning bool) (Finding, bool) {
	name := nameOf(text, warning)
	if name == "" {
		return Finding{}, false
	}
	finding := newFinding(name, text)
	if m := namedDevice.FindStringSubmatch(text); m != nil {
		finding.Device = clip(m[1])
	} else if m := asyncEvent.FindStringSubmatch(text); m != nil {
		finding.Device = clip(m[1])
	}
	if m := namedPeer.FindStringSubmatch(text); m != nil {
		finding.Peer = clip(m[1])
		finding.Next = strings.NewReplacer("ADDRESS", finding.Peer, "PORT", m[2]).Replace(finding.Next)
	}
	return finding, true
}

func nameOf(text string, warning bool) fail.Reason {
	for _, recognizer := range []func(string, bool) fail.Reason{nameOfVerbs, nameOfCompletion, nameOfEvent, nameOfConnection} {
		if name := recognizer(text, warning); name != "" {
			return name
		}
	}
	return firstMatch(rules, text, warning)
}

func firstMatch(rules []rule, text string, warning bool) fail.Reason {
	for _, r := range rules {
		if r.matches(text, warning) {
			return r.name
		}
	}
	return ""
}

// recognizePlain finds what a line without NCCL's header shows.
func recognizePlain(rules []rule, text string) (Finding, bool) {
	name := firstMatch(rules, text, true)
	return newFinding(name, strings.TrimSpace(text)), name != ""
}

// connection is a failed connect: "socketStartConnect: Connect to 10.1.2.3<29500> failed :
// Connection refused", "socketPollConnect: connect to 10.1.2.3<29500> returned No route to host,
// exceeded error retry count after 35 attempts", "Call to connect returned Connection timed out,
// retrying" (misc/socket.cc; the words differ with each version from 2.16 to 2.30).
var connection = regexp.MustCompile(`(?:[Cc]onnect|socketPollConnect).*(Connection refused|Connection timed out|No route to host|Network is unreachable|Host is unreachable)`)

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
