package nccl

import "slices"

// torchRules recognize what torch.distributed and gloo print where ranks do not find or
// reach each other. They come from pytorch/pytorch:torch/csrc/distributed/c10d/socket.cpp and
// pytorch/gloo:gloo/transport/tcp; the words behind them are the C library's.
var torchRules = []rule{
	// gloo's device (transport/tcp/device.cc, helpers of ProcessGroupGloo.cpp).
	{name: NoSocketInterface, words: []string{"Unable to find address for"}},
	{name: NoSocketInterface, words: []string{"Unable to find interface for"}},
	{name: NoSocketInterface, words: []string{"Couldn't find interface"}},
	// getaddrinfo.
	{name: NameUnresolved, words: []string{"Name or service not known"}},
	{name: NameUnresolved, words: []string{"Temporary failure in name resolution"}},
	{name: NameUnresolved, words: []string{"No address associated with hostname"}},
	{name: NameUnresolved, words: []string{"cannot be retrieved (gai error"}},
	{name: PeerUnreachable, words: []string{"No route to host"}},
	{name: PeerUnreachable, words: []string{"Network is unreachable"}},
	{name: PeerUnreachable, words: []string{"onnection timed out"}},
	{name: PeerUnreachable, words: []string{"client socket has timed out"}},
	{name: PeerUnreachable, words: []string{"onnect", "timed out"}},
	{name: ConnectionRefused, words: []string{"onnection refused"}},
	{name: PeerGone, words: []string{"Connection closed by peer"}},
	{name: PeerGone, words: []string{"Connection reset by peer"}},
	{name: PeerGone, words: []string{"Broken pipe"}},
	{name: CollectiveTimeout, words: []string{"Timed out waiting"}},
	{name: CollectiveTimeout, words: []string{"ocket Timeout"}},
	{name: CollectiveTimeout, words: []string{"timed out after"}},
}

// FromTorch finds what an error of torch.distributed shows of the network, as of gloo, which has no log of its own.
func FromTorch(text string) (Finding, bool) {
	return recognizePlain(slices.Concat(torchRules, plainRules), text)
}
