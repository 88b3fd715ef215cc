// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/promtext"
)

func gpuMetrics(gpus []agent.GPU) []promtext.Metric {
	gauge := func(name, help string, value func(agent.GPU) float64) promtext.Metric {
		m := promtext.Metric{Name: "mlenv_gpu_" + name, Type: promtext.Gauge, Help: help}
		for _, gpu := range gpus[:min(len(gpus), mostDevices)] {
			m.Add(value(gpu), "gpu", strconv.Itoa(gpu.Index), "uuid", shortened(gpu.UUID))
		}
		return m
	}
	return []promtext.Metric{
		gauge("utilization_ratio", "Part of the time in which the GPU was busy, from 0 to 1, as nvidia-smi shows it.",
			func(g agent.GPU) float64 { return float64(g.Utilization) / 100 }),
		gauge("memory_used_bytes", "Memory of the GPU in use.", func(g agent.GPU) float64 { return float64(g.MemoryUsed) }),
		gauge("memory_size_bytes", "Memory of the GPU.", func(g agent.GPU) float64 { return float64(g.Memory) }),
		gauge("temperature_celsius", "Temperature of the GPU.", func(g agent.GPU) float64 { return float64(g.Temperature) }),
		gauge("healthy", "1, or 0 if the driver asks for a recovery of the GPU.", func(g agent.GPU) float64 {
			if g.Fault != "" {
				return 0
			}
			return 1
		}),
	}
}

// gpuUse reads the GPUs for the metrics. nvidia-smi takes seconds on some nodes, and several Prometheus servers may ask.
type gpuUse struct {
	mu sync.Mutex
	// reading is closed when the reading in progress ends. It is nil if none is in progress.
	reading chan struct{}
	at      time.Time
	gpus    []agent.GPU
	err     error
}

const (
	// gpuAge is how old a reading of nvidia-smi may be that is served instead of a new one.
	gpuAge = 5 * time.Second
	// gpuKept is how old a reading of nvidia-smi may be that is served because a new one takes too long.
	gpuKept = 2 * time.Minute
	// gpuTime is how long nvidia-smi may take until the last reading is served.
	gpuTime = 7 * time.Second
)

// recent returns what a reading of the last seconds shows, or else the last one that is not too old.
func (u *gpuUse) recent(done <-chan struct{}, read func() ([]agent.GPU, error)) ([]agent.GPU, error) {
	u.mu.Lock()
	if u.reading == nil && time.Since(u.at) > gpuAge {
		u.reading = make(chan struct{})
		go u.read(read)
	}
	reading := u.reading
	u.mu.Unlock()
	if reading != nil {
		timer := time.NewTimer(gpuTime)
		defer timer.Stop()
		select {
		case <-reading:
		case <-timer.C:
		case <-done:
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) > gpuKept {
		return nil, errors.New("reading the GPUs: nvidia-smi has not answered yet")
	}
	return u.gpus, u.err
}

func (u *gpuUse) read(read func() ([]agent.GPU, error)) {
	gpus, err := read()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gpus, u.err, u.at = gpus, err, time.Now()
	close(u.reading)
	u.reading = nil
}
