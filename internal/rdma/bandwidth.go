package rdma

// What of a rate is left for data. Both are measured ones, on nodes of four 400 Gb/s NICs.
const (
	// ringEfficiency is what a healthy ring reaches of the ports' rates: 194.6 of 200
	// GB/s over RoCE with GPUDirect, 49.1 of 50 with one of 100 Gb/s.
	ringEfficiency = 0.97
	// pcieEfficiency is what packets' headers and flow control leave of a link: 25 to 28
	// GB/s of the 31.5 of PCIe 4.0 x16, 50 to 55 of the 63 of 5.0 x16.
	pcieEfficiency = 0.85
)

// Rate is what the port and its card's PCIe link both carry. A link that is not known,
// as in a virtual machine, does not count.
func (r RailPort) Rate() BitsPerSecond {
	if link := BitsPerSecond(float64(r.Device.PCIe.Rate()) * pcieEfficiency); link > 0 {
		return min(r.Port.Rate, link)
	}
	return r.Port.Rate
}

// ExpectedBandwidth is the bus bandwidth that rings over this port alone should reach.
func (r RailPort) ExpectedBandwidth() BytesPerSecond { return ringBandwidth([]RailPort{r}) }

// ExpectedBandwidth is the bus bandwidth that rings over all rails of the node should
// reach, as nccl-tests prints it: the sum of what the rails carry, times what a healthy
// ring makes of it.
func (f Facts) ExpectedBandwidth() BytesPerSecond {
	return ringBandwidth(f.Rails())
}

func ringBandwidth(ports []RailPort) BytesPerSecond {
	var sum BitsPerSecond
	for _, port := range ports {
		sum += port.Rate()
	}
	return BytesPerSecond(float64(sum) / 8 * ringEfficiency)
}

// ExpectedBandwidth is what a training on the nodes should reach: the least of theirs,
// as every node is in every ring, over the rails that all have. The cluster file's
// figure, if any, wins.
func ExpectedBandwidth(nodes []Facts, expected Expected) BytesPerSecond {
	if expected.Bandwidth > 0 {
		return expected.Bandwidth
	}
	var least BytesPerSecond
	for i := range nodes {
		if b := ringBandwidth(commonPorts(nodes, i)); i == 0 || b < least {
			least = b
		}
	}
	return least
}
