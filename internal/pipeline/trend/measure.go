// SPDX-License-Identifier: Apache-2.0

// Package trend compares bandwidth, step time, final loss, goodput and speed of devices of runs of one kind, by their receipts.
package trend

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Values are the measures of a run; nil was not measured.
type Values struct {
	// Bandwidth is the bus bandwidth of check-fabric.
	Bandwidth *rdma.BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
	// StepTime is the median of the training.
	StepTime *time.Duration `json:"stepTimeNanoseconds,omitempty"`
	// Loss is the last loss.
	Loss *float64 `json:"loss,omitempty"`
	// LossLost reports that the last loss was NaN or infinite.
	LossLost bool `json:"lossNotFinite,omitempty"`
	// Goodput is the part of the time with all GPUs that useful steps took, in percent.
	Goodput *Percent `json:"goodputPercent,omitempty"`
	// Product is the rate of a matrix product on the slowest device, of check-fabric.
	Product *fabric.FLOPS `json:"flopsPerSecond,omitempty"`
	// Slowest is the lowest rate of a device, of products and of copies, in percent of the median of its kind.
	Slowest *Percent `json:"slowestDevicePercent,omitempty"`
}

// ValuesOf reads them from a receipt.
func ValuesOf(r receipt.Receipt) Values {
	var v Values
	if r.Fabric != nil && r.Fabric.Bandwidth > 0 {
		v.Bandwidth = &r.Fabric.Bandwidth
	}
	if r.Fabric != nil {
		v.Product, v.Slowest = devicesOf(r.Fabric.DeviceKinds)
	}
	if r.Curve != nil && r.Curve.StepTime > 0 {
		v.StepTime = &r.Curve.StepTime
	}
	if g := r.Goodput; g != nil && g.Measured {
		v.Goodput = new(Percent(100 * g.Share))
	}
	var last map[string]any
	if json.Unmarshal(r.Metrics, &last) != nil {
		return v
	}
	if loss, ok := metrics.LossOf(last); ok {
		if v.LossLost = math.IsNaN(loss) || math.IsInf(loss, 0); !v.LossLost {
			v.Loss = &loss
		}
	}
	return v
}

// devicesOf returns the lowest rate of a product, and the lowest part of a median. A device that is alone is not compared.
func devicesOf(kinds []fabric.DeviceKind) (product *fabric.FLOPS, slowest *Percent) {
	for _, kind := range kinds {
		if lowest := kind.Product.Lowest; lowest > 0 && (product == nil || lowest < *product) {
			product = &lowest
		}
		for _, part := range []float64{kind.Product.LowestShare(), kind.Copy.LowestShare()} {
			if p := Percent(100 * part); p > 0 && kind.Devices > 1 && (slowest == nil || p < *slowest) {
				slowest = &p
			}
		}
	}
	return product, slowest
}

// Measure is one of the values.
type Measure string

// The measures.
const (
	Bandwidth Measure = "bandwidth"
	StepTime  Measure = "step time"
	Loss      Measure = "loss"
	Goodput   Measure = "goodput"
	Product   Measure = "matrix product"
	Slowest   Measure = "slowest device"
)

// Measures returns all measures.
func Measures() []Measure {
	return []Measure{Bandwidth, StepTime, Loss, Goodput, Product, Slowest}
}

func (m Measure) lessIsBetter() bool { return m == StepTime || m == Loss }

// valueIn returns the measure's value in its base unit, NaN for none.
func (m Measure) valueIn(v Values) float64 {
	switch {
	case m == Bandwidth && v.Bandwidth != nil:
		return float64(*v.Bandwidth)
	case m == StepTime && v.StepTime != nil:
		return float64(*v.StepTime)
	case m == Loss && v.Loss != nil:
		return *v.Loss
	case m == Goodput && v.Goodput != nil:
		return float64(*v.Goodput)
	case m == Product && v.Product != nil:
		return float64(*v.Product)
	case m == Slowest && v.Slowest != nil:
		return float64(*v.Slowest)
	}
	return math.NaN()
}

// formatValue formats a value, "-" for none.
func (m Measure) formatValue(value float64) string {
	switch {
	case math.IsNaN(value):
		return "-"
	case m == Bandwidth:
		return rdma.BytesPerSecond(value).String()
	case m == StepTime:
		return time.Duration(value).Round(10 * time.Microsecond).String()
	case m == Product:
		return fabric.FLOPS(value).String()
	case m == Goodput, m == Slowest:
		return Percent(value).String()
	}
	return fmt.Sprintf("%.4g", value)
}

// Percent is a percentage.
type Percent float64

// String has one decimal.
func (p Percent) String() string {
	if math.Abs(float64(p)) >= math.MaxInt32 {
		return "infinitely"
	}
	return strconv.FormatFloat(float64(p), 'f', 1, 64) + "%"
}

// ParsePercent reads "10" or "10%".
func ParsePercent(text string) (Percent, error) {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || value < 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return 0, fmt.Errorf("want a percentage of at least 0, such as 10%%")
	}
	return Percent(value), nil
}
