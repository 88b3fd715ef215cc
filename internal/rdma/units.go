// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"strconv"
	"strings"
)

// BitsPerSecond is the rate of a link. Vendors give links in Gb/s, 10^9 bits per second.
type BitsPerSecond int64

// Gbps is 1 Gb/s. maxRate is more than any link has: agents report rates, and sums must not overflow.
const (
	Gbps    BitsPerSecond = 1e9
	maxRate BitsPerSecond = 1e15
)

// String returns the rate in Gb/s, as in "400 Gb/s".
func (b BitsPerSecond) String() string {
	return fmt.Sprintf("%.4g Gb/s", float64(b)/float64(Gbps))
}

// BytesPerSecond is a bus bandwidth, as nccl-tests reckons it.
type BytesPerSecond int64

// GBps is 1 GB/s, 10^9 bytes per second, in which nccl-tests and vendors count.
const GBps BytesPerSecond = 1e9

// String returns the bandwidth as "194.6 GB/s", and values below 1 with more digits.
func (b BytesPerSecond) String() string {
	if value := float64(b) / float64(GBps); value < 1 && value > 0 {
		return fmt.Sprintf("%.3g GB/s", value)
	}
	return fmt.Sprintf("%.1f GB/s", float64(b)/float64(GBps))
}

// GTps is a PCIe lane's speed in 10^9 transfers per second: a bit each, its encoding included.
type GTps float64

// Link is the speed and width of a PCIe link. Its zero value is one that is not known.
type Link struct {
	Speed GTps `json:"speedGTps"`
	// Width is in lanes.
	Width int `json:"width"`
}

// String is as lspci shows a link: "32 GT/s x16".
func (l Link) String() string {
	if l == (Link{}) {
		return "unknown"
	}
	return fmt.Sprintf("%g GT/s x%d", float64(l.Speed), l.Width)
}

// Rate returns what the link carries in one direction, its encoding taken off: 8b/10b up to 5 GT/s, 128b/130b up to 32, and
// none above (linux:drivers/pci/pci.h, PCIE_SPEED2MBS_ENC). It includes the packets' headers.
func (l Link) Rate() BitsPerSecond {
	rate := float64(l.Speed) * float64(l.Width) * 1e9
	switch {
	case l.Speed <= 5:
		rate *= 8.0 / 10
	case l.Speed <= 32:
		rate *= 128.0 / 130
	}
	return BitsPerSecond(max(0, min(rate, float64(maxRate))))
}

// parseLink reads a pair of sysfs' files: "32.0 GT/s PCIe" and "16". A link that is
// "Unknown", as a virtual function's is, has the zero value.
func parseLink(speed, width string) Link {
	number, _, _ := strings.Cut(speed, " GT/s")
	s, err := strconv.ParseFloat(number, 64)
	w, err2 := strconv.Atoi(width)
	// A NaN is in no range; a width of 63 is what is read of a card that is gone.
	if inRange := s > 0 && s < 1000 && w > 0 && w < 63; err != nil || err2 != nil || !inRange {
		return Link{}
	}
	return Link{Speed: GTps(s), Width: w}
}

// parseRate reads a port's rate: "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)". It is 0 for any other text.
func parseRate(text string) BitsPerSecond {
	number, _, ok := strings.Cut(text, " Gb/sec")
	rate, err := strconv.ParseFloat(number, 64)
	if inRange := rate > 0 && rate < 1e6; !ok || err != nil || !inRange {
		return 0
	}
	return BitsPerSecond(rate * float64(Gbps))
}
