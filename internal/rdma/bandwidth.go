// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"math"
	"slices"
)

// The parts of a rate that are left for data, measured on nodes with four 400 Gb/s NICs.
const (
	// ringEfficiency is what a healthy ring reaches of the ports' rates: 194.6 of 200
	// GB/s over RoCE with GPUDirect, 49.1 of 50 with one of 100 Gb/s.
	ringEfficiency = 0.97
	// pcieEfficiency is what packets' headers and flow control leave of a link: 25 to 28 GB/s of the 31.5 of PCIe 4.0 x16, 50 to 55 of the
	// 63 of 5.0 x16.
	pcieEfficiency = 0.85
)

// Rate returns what the port and its card's PCIe link both carry. A link that is not known,
// as in a virtual machine, does not count.
func (r RailPort) Rate() BitsPerSecond {
	rate := max(0, min(r.Port.Rate, maxRate))
	if link := BitsPerSecond(float64(r.Device.PCIe.Rate()) * pcieEfficiency); link > 0 {
		return min(rate, link)
	}
	return rate
}

// RailBandwidth returns the bus bandwidth that rings over one port should reach with data of one GPU. gpu is its PCI address.
func (f Facts) RailBandwidth(port RailPort, gpu string) BytesPerSecond {
	return ringBandwidth(port.Rate(), []Link{f.GPULinks[gpu]})
}

// ExpectedBandwidth returns the bus bandwidth that rings over all rails of the node should reach, as nccl-tests prints it.
func (f Facts) ExpectedBandwidth() BytesPerSecond { return ringBandwidth(sumOf(f.Rails()), f.links()) }

// links returns the links of the container's GPUs.
func (f Facts) links() (links []Link) {
	for _, gpu := range f.GPUs {
		links = append(links, f.GPULinks[gpu])
	}
	return links
}

func sumOf(ports []RailPort) (sum BitsPerSecond) {
	for _, port := range ports {
		sum += port.Rate()
	}
	return sum
}

// ringBandwidth returns what a healthy ring makes of the lesser of what the ports carry and what the GPUs with these links can move.
// All that crosses the network crosses the link of some GPU: one with PCIe 5.0 x16 fills one 400 Gb/s port and no second one.
// Links that are not known do not count.
func ringBandwidth(ports BitsPerSecond, gpus []Link) BytesPerSecond {
	var moved BitsPerSecond
	for _, gpu := range gpus {
		moved += BitsPerSecond(float64(gpu.Rate()) * pcieEfficiency)
	}
	if len(gpus) > 0 && !slices.Contains(gpus, Link{}) {
		ports = min(ports, moved)
	}
	return BytesPerSecond(float64(ports) / 8 * ringEfficiency)
}

// ExpectedBandwidth returns what a training on the nodes should reach over the rails that all have: the least of the nodes'
// bandwidths, as every node is in every ring. The cluster file's figure, if any, takes the rails' place: it holds for jobs with
// all GPUs of the nodes, and fewer GPUs may move less.
func ExpectedBandwidth(nodes []Facts, expected Expected) BytesPerSecond {
	least := expected.Bandwidth
	for i, node := range nodes {
		ports := BitsPerSecond(math.MaxInt64)
		if expected.Bandwidth == 0 {
			ports = sumOf(commonPorts(nodes, i))
		}
		if b := ringBandwidth(ports, node.links()); least == 0 && i == 0 || b < least {
			least = b
		}
	}
	return least
}
