// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// FLOPS is a number of floating point operations per second.
type FLOPS int64

// String returns the rate as "648.0 TFLOP/s", or in GFLOP/s if it is small.
func (f FLOPS) String() string {
	const giga, tera = 1e9, 1e12
	if f < tera {
		return fmt.Sprintf("%.4g GFLOP/s", float64(f)/giga)
	}
	return fmt.Sprintf("%.1f TFLOP/s", float64(f)/tera)
}

// Device is how fast the device of one rank computes and copies while all ranks do the same.
type Device struct {
	Rank int `json:"rank"`
	Node int `json:"node"`
	// Kind is the name of the GPU, or of the processor.
	Kind string `json:"kind"`
	// Precision is the type of the numbers of the product, by torch's name.
	Precision string `json:"precision,omitempty"`
	// Product is the rate of a product of matrices, 0 if it was not measured.
	Product FLOPS `json:"flopsPerSecond,omitempty"`
	// Copy is the rate of a copy within the device's memory, bytes read and bytes written together; 0 if it was not measured.
	Copy rdma.BytesPerSecond `json:"copyBytesPerSecond,omitempty"`
	// NotMeasured is why a rate is missing, "" if none is.
	NotMeasured string `json:"notMeasured,omitempty"`
}

// DeviceKind is how fast the devices of one kind are.
type DeviceKind struct {
	Kind      string `json:"kind"`
	Precision string `json:"precision,omitempty"`
	// Devices is how many of this kind were measured.
	Devices int                         `json:"devices"`
	Product Spread[FLOPS]               `json:"flopsPerSecond,omitzero"`
	Copy    Spread[rdma.BytesPerSecond] `json:"copyBytesPerSecond,omitzero"`
}

// Spread is the range of a rate. Of an even number of rates the median is the greater one of the middle two, so of two it is the highest.
type Spread[Rate ~int64] struct {
	Lowest  Rate `json:"lowest"`
	Median  Rate `json:"median"`
	Highest Rate `json:"highest"`
}

// SlowDevice is a device that is slower than others of its kind. Rates in which it is not slow are 0, and so are their medians.
type SlowDevice struct {
	Node int `json:"node"`
	// KubernetesNode is the one that Node runs on, "" if it is not known.
	KubernetesNode string `json:"kubernetesNode,omitempty"`
	Rank           int    `json:"rank"`
	Kind           string `json:"kind"`
	// Devices is how many of this kind were measured.
	Devices       int                 `json:"devices"`
	Product       FLOPS               `json:"flopsPerSecond,omitempty"`
	ProductMedian FLOPS               `json:"medianFlopsPerSecond,omitempty"`
	Copy          rdma.BytesPerSecond `json:"copyBytesPerSecond,omitempty"`
	CopyMedian    rdma.BytesPerSecond `json:"medianCopyBytesPerSecond,omitempty"`
}

// String describes the device and its rates, for example "rank 9 of node 1 (wrk-97), NVIDIA H100: matrix product 410.2 TFLOP/s, 37% below
// the median 648.0 TFLOP/s of 16 devices".
func (s SlowDevice) String() string {
	var rates []string
	if s.ProductMedian > 0 {
		rates = append(rates, fmt.Sprintf("matrix product %s, %s %s", s.Product, below(s.Product, s.ProductMedian), s.than(s.ProductMedian)))
	}
	if s.CopyMedian > 0 {
		rates = append(rates, fmt.Sprintf("copy %s, %s %s", s.Copy, below(s.Copy, s.CopyMedian), s.than(s.CopyMedian)))
	}
	where := fmt.Sprintf("rank %d of node %d", s.Rank, s.Node)
	if s.KubernetesNode != "" {
		where += " (" + s.KubernetesNode + ")"
	}
	return fmt.Sprintf("%s, %s: %s", where, s.Kind, strings.Join(rates, "; "))
}

func (s SlowDevice) than(median fmt.Stringer) string {
	if s.Devices == 2 {
		return fmt.Sprintf("the other one's %s", median)
	}
	return fmt.Sprintf("the median %s of %s", median, humanize.Count(s.Devices, "device"))
}

func below[Rate ~int64](rate, median Rate) string {
	return fmt.Sprintf("%.0f%% below", 100*(1-float64(rate)/float64(median)))
}

const (
	// gpuAlike is the part of the median below which a GPU is slow: healthy ones of a kind differ by less than 10%.
	gpuAlike = 0.8
	// processorAlike is the same for processors, which ranks share with other programs. A rank that is throttled is so slow in all that it
	// does; a rank that waits for a processor in one of the measurements is not.
	processorAlike = 1.0 / 3
	// mostDevices is how many devices a report lists.
	mostDevices = 256
)

// compareDevices sets DeviceKinds and SlowDevices from the devices.
func (r *Report) compareDevices() {
	r.DeviceKinds, r.SlowDevices = nil, nil
	kinds := map[DeviceKind][]Device{}
	for _, d := range r.Devices {
		if d.valid() && d.Node < r.Nodes && (d.Product > 0 || d.Copy > 0) {
			kind := DeviceKind{Kind: d.Kind, Precision: d.Precision}
			kinds[kind] = append(kinds[kind], d)
		}
	}
	for kind, devices := range kinds {
		kind.Devices = len(devices)
		kind.Product = spreadOf(devices, func(d Device) FLOPS { return d.Product })
		kind.Copy = spreadOf(devices, func(d Device) rdma.BytesPerSecond { return d.Copy })
		r.DeviceKinds = append(r.DeviceKinds, kind)
		for _, d := range devices {
			if slow, ok := r.slowDevice(d, kind); ok {
				r.SlowDevices = append(r.SlowDevices, slow)
			}
		}
	}
	slices.SortFunc(r.DeviceKinds, func(a, b DeviceKind) int {
		return cmp.Or(cmp.Compare(b.Devices, a.Devices), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Precision, b.Precision))
	})
	slices.SortFunc(r.SlowDevices, func(a, b SlowDevice) int { return cmp.Compare(a.Rank, b.Rank) })
}

// slowDevice compares a device with its kind. A GPU is slow if one of its rates is low, a processor only if both are.
func (r *Report) slowDevice(d Device, kind DeviceKind) (slow SlowDevice, ok bool) {
	alike := gpuAlike
	if r.Backend == Gloo {
		alike = processorAlike
	}
	slow = SlowDevice{Node: d.Node, Rank: d.Rank, Kind: d.Kind, Devices: kind.Devices}
	if d.Node < len(r.KubernetesNodes) {
		slow.KubernetesNode = r.KubernetesNodes[d.Node]
	}
	if d.Product > 0 && float64(d.Product) < alike*float64(kind.Product.Median) {
		slow.Product, slow.ProductMedian = d.Product, kind.Product.Median
	}
	if d.Copy > 0 && float64(d.Copy) < alike*float64(kind.Copy.Median) {
		slow.Copy, slow.CopyMedian = d.Copy, kind.Copy.Median
	}
	if r.Backend == Gloo {
		return slow, slow.ProductMedian > 0 && slow.CopyMedian > 0
	}
	return slow, slow.ProductMedian > 0 || slow.CopyMedian > 0
}

func spreadOf[Rate ~int64](devices []Device, rate func(Device) Rate) (s Spread[Rate]) {
	var rates []Rate
	for _, d := range devices {
		if r := rate(d); r > 0 {
			rates = append(rates, r)
		}
	}
	if len(rates) == 0 {
		return s
	}
	slices.Sort(rates)
	return Spread[Rate]{Lowest: rates[0], Median: rates[len(rates)/2], Highest: rates[len(rates)-1]}
}

// Better returns the devices with the higher one of each two rates that were measured of a rank.
func Better(devices, again []Device) []Device {
	better := slices.Clone(devices)
	for i, d := range better {
		for _, other := range again {
			if other.Rank == d.Rank && other.Node == d.Node && other.Kind == d.Kind {
				better[i].Product, better[i].Copy = max(d.Product, other.Product), max(d.Copy, other.Copy)
			}
		}
	}
	return better
}

// slowTexts describes the slow devices and adds their nodes to the faulty ones.
func (r *Report) slowTexts() (texts []string) {
	const most = 3
	for i, slow := range r.SlowDevices {
		r.FaultyNodes = append(r.FaultyNodes, slow.Node)
		if i < most {
			texts = append(texts, slow.String())
		}
	}
	if more := len(r.SlowDevices) - most; more > 0 {
		texts = append(texts, humanize.Count(more, "more slow device"))
	}
	slices.Sort(r.FaultyNodes)
	r.FaultyNodes = slices.Compact(r.FaultyNodes)
	return texts
}

// Condense leaves out devices that are like others if there are very many. DeviceKinds has the spread of all.
func (r *Report) Condense() {
	if len(r.Devices) <= mostDevices {
		return
	}
	r.Devices = slices.DeleteFunc(slices.Clone(r.Devices), func(d Device) bool {
		return d.NotMeasured == "" && !slices.ContainsFunc(r.SlowDevices, func(s SlowDevice) bool { return s.Rank == d.Rank })
	})
	r.Devices = r.Devices[:min(len(r.Devices), mostDevices)]
}

// valid returns false for values that no benchmark can measure.
func (d Device) valid() bool {
	const mostRanks, fastest = 1 << 20, 1e18
	const longestName, longestText = 200, 1000
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	return d.Node >= 0 && d.Rank >= 0 && d.Rank < mostRanks && d.Kind != "" && len(d.Kind) < longestName && len(d.Precision) < longestName &&
		!strings.ContainsFunc(d.Kind+d.Precision, hidden) && len(d.NotMeasured) < longestText &&
		d.Product >= 0 && d.Product < fastest && d.Copy >= 0 && d.Copy < maxBandwidth
}

// Describe returns the kind's number and rates in a line.
func (k DeviceKind) Describe() string {
	text := fmt.Sprintf("%s: %s", k.Kind, humanize.Count(k.Devices, "device"))
	if p := k.Product; p.Highest > 0 {
		text += fmt.Sprintf(", matrix product (%s) %s", k.Precision, p)
	}
	if c := k.Copy; c.Highest > 0 {
		text += fmt.Sprintf(", copy %s", c)
	}
	return text
}

// LowestShare returns the lowest rate as a part of the median, 0 if nothing was measured.
func (s Spread[Rate]) LowestShare() float64 {
	if s.Lowest <= 0 || s.Median <= 0 {
		return 0
	}
	return float64(s.Lowest) / float64(s.Median)
}

// String returns the range and the median.
func (s Spread[Rate]) String() string {
	if s.Lowest == s.Highest {
		return fmt.Sprint(s.Median)
	}
	return fmt.Sprintf("%v to %v, median %v", s.Lowest, s.Highest, s.Median)
}
