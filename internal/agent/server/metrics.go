// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/promtext"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// The number of samples must not depend on what a training writes, or on how long an environment exists.
const (
	// mostDevices bounds the GPUs, the interfaces and the RDMA ports of a node that have samples.
	mostDevices = 64
	// mostLabel bounds the value of a label, in bytes.
	mostLabel = 253
)

const collectorSuccess = "mlenv_collector_success"

// metrics answers Prometheus. What cannot be read is left out, so that one broken device does not hide the rest.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	success := promtext.Metric{Name: collectorSuccess, Type: promtext.Gauge,
		Help: "1 if the agent could read all metrics of this kind, 0 if some are missing."}
	all := append(s.config.agentMetrics(), s.trainingMetrics()...)
	gpus, err := s.recentGPUs(r.Context())
	all = append(all, gpuMetrics(gpus)...)
	success.Add(succeeded(err), "collector", "gpu")
	network, err := networkMetrics(rdma.RootFS(rdma.SysRootOf(s.config.Environ)))
	all = append(all, network...)
	success.Add(succeeded(err), "collector", "network")
	var text bytes.Buffer
	if err := promtext.Write(&text, append(all, success)); err != nil {
		return fmt.Errorf("writing the metrics: %w", err)
	}
	w.Header().Set("Content-Type", promtext.ContentType)
	_, err = w.Write(text.Bytes())
	return err
}

func succeeded(err error) float64 {
	if err != nil {
		return 0
	}
	return 1
}

func (c Config) agentMetrics() []promtext.Metric {
	info := promtext.Metric{Name: "mlenv_agent_info", Type: promtext.Gauge,
		Help: "The agent of one node of an environment; the value is always 1."}
	info.Add(1, "environment", c.Name, "node", strconv.Itoa(c.Node), "version", c.Version)
	return []promtext.Metric{info}
}

// trainingMetrics describe the running job that started last. Its own metrics come from node 0, where rank 0 writes
// them: other nodes may share the file.
func (s *Server) trainingMetrics() []promtext.Metric {
	attempts := promtext.Metric{Name: "mlenv_training_attempts_total", Type: promtext.Counter,
		Help: "Attempts of trainings that this agent has started, first ones and restarts."}
	attempts.Add(float64(s.jobs.attempts.Load()))
	running := promtext.Metric{Name: "mlenv_training_running", Type: promtext.Gauge, Help: "1 while a training runs on the node, otherwise 0."}
	j := s.jobs.newest()
	if j == nil {
		running.Add(0)
		return []promtext.Metric{running, attempts}
	}
	running.Add(1)
	status, _ := j.snapshot()
	all := append([]promtext.Metric{running, attempts}, runMetrics(status)...)
	if s.config.Node == 0 {
		all = append(all, progressMetrics(readProgress(j.dir.Metrics()))...)
	}
	return all
}

// runMetrics returns what the node knows of the job itself.
func runMetrics(status agent.JobStatus) []promtext.Metric {
	info := promtext.Metric{Name: "mlenv_training_info", Type: promtext.Gauge,
		Help: "The training that runs on the node; the value is always 1."}
	info.Add(1, "launcher", string(status.Spec.Launcher), "run", shortened(status.Spec.Run))
	attempt := promtext.Metric{Name: "mlenv_training_attempt", Type: promtext.Gauge, Help: "Number of the training's attempt, from 1."}
	attempt.Add(float64(status.Spec.Attempt()))
	started := promtext.Metric{Name: "mlenv_training_start_time_seconds", Type: promtext.Gauge,
		Help: "When the attempt started on the node, in seconds since 1970."}
	started.Add(float64(status.Started.UnixMilli()) / 1000)
	return []promtext.Metric{info, attempt, started}
}

// shortened bounds the value of a label.
func shortened(value string) string {
	return strings.ToValidUTF8(value[:min(len(value), mostLabel)], "")
}
