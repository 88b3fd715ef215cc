// Package trend compares what runs of one kind have reached, by their receipts: bandwidth,
// step time and final loss.
package trend

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/metrics"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// Values are what is compared of one run; what was not measured is nil.
type Values struct {
	// Bandwidth is the bus bandwidth that check-fabric reached.
	Bandwidth *rdma.BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
	// StepTime is the median of the training's.
	StepTime *time.Duration `json:"stepTimeNanoseconds,omitempty"`
	// Loss is the last one that the training wrote.
	Loss *float64 `json:"loss,omitempty"`
	// LossLost is true where that was NaN or infinite.
	LossLost bool `json:"lossNotFinite,omitempty"`
}

// ValuesOf reads them from a receipt.
func ValuesOf(r receipt.Receipt) Values {
	var v Values
	if r.Fabric != nil && r.Fabric.Bandwidth > 0 {
		v.Bandwidth = &r.Fabric.Bandwidth
	}
	if r.Curve != nil && r.Curve.StepTime > 0 {
		v.StepTime = &r.Curve.StepTime
	}
	var last map[string]any
	if json.Unmarshal(r.Metrics, &last) != nil {
		return v
	}
	if loss, ok := metrics.Number(last, "loss"); ok {
		v.Loss = &loss
	} else if _, word := last["loss"].(string); word {
		v.LossLost = true
	}
	return v
}

// Measure is one of the values.
type Measure string

// The measures.
const (
	Bandwidth Measure = "bandwidth"
	StepTime  Measure = "step time"
	Loss      Measure = "loss"
)

// Measures are all of them.
func Measures() []Measure { return []Measure{Bandwidth, StepTime, Loss} }

// lessIsBetter is true of times and losses.
func (m Measure) lessIsBetter() bool { return m != Bandwidth }

// of is the measure's value in its base unit, NaN where there is none.
func (m Measure) of(v Values) float64 {
	switch {
	case m == Bandwidth && v.Bandwidth != nil:
		return float64(*v.Bandwidth)
	case m == StepTime && v.StepTime != nil:
		return float64(*v.StepTime)
	case m == Loss && v.Loss != nil:
		return *v.Loss
	}
	return math.NaN()
}

// text writes a value for people, "-" where there is none.
func (m Measure) text(value float64) string {
	switch {
	case math.IsNaN(value):
		return "-"
	case m == Bandwidth:
		return rdma.BytesPerSecond(value).String()
	case m == StepTime:
		return time.Duration(value).Round(10 * time.Microsecond).String()
	}
	return fmt.Sprintf("%.4g", value)
}
