// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/invopop/jsonschema"
)

// Bandwidth is in bytes per second. It is written in GB/s, 10^9 bytes per second, which nccl-tests and vendors use. GiB/s,
// which is 7% more, and Gb/s, an eighth, are so often taken for it that they are refused by name.
type Bandwidth int64

// GBps is 1 GB/s.
const GBps Bandwidth = 1e9

// String returns the bandwidth in GB/s, as in "194.6GB/s".
func (b Bandwidth) String() string {
	return strconv.FormatFloat(float64(b)/float64(GBps), 'f', -1, 64) + "GB/s"
}

// bandwidthText is a number without a sign, and a unit.
var bandwidthText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?(.*)$`)

// maxBandwidth, in GB/s, is far more than any node has, and far from an overflow.
const maxBandwidth = 100_000

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bandwidth) UnmarshalText(text []byte) error {
	const want = `want GB/s (10^9 bytes per second), as in "200GB/s"`
	match := bandwidthText.FindStringSubmatch(string(text))
	if match == nil {
		return fmt.Errorf("not a bandwidth; %s", want)
	}
	number, err := strconv.ParseFloat(match[1], 64)
	if err != nil || number > maxBandwidth {
		return fmt.Errorf("more than any node has; %s", want)
	}
	inGBps := func(factor float64) string {
		return strconv.FormatFloat(number*factor, 'g', 4, 64) + "GB/s"
	}
	switch unit := match[2]; unit {
	case "GB/s":
		*b = Bandwidth(math.Round(number * float64(GBps)))
		return nil
	case "":
		return fmt.Errorf("has no unit; %s", want)
	case "GiB/s", "Gi/s":
		return fmt.Errorf("is in 2^30 bytes per second; %s: this is %s", want, inGBps(1.073741824))
	case "Gb/s", "Gbps", "Gbit/s":
		return fmt.Errorf("is in bits per second; %s: this is %s", want, inGBps(1.0/8))
	default:
		return fmt.Errorf("%q is no unit for it; %s", unit, want)
	}
}

// JSONSchema implements the schema generator's interface.
func (Bandwidth) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "string", Pattern: `^[0-9]+(\.[0-9]+)? ?GB/s$`,
	}
}
