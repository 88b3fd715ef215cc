// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// network is the network as check-fabric measured it, and as the training's NCCL logs show it.
type network struct {
	// Missing explains why there is no measurement, NotLogged why there are no logs.
	Missing, NotLogged string
	Verdict            badge
	Message            string
	Facts              []fact
	Pictures           []picture
	Rails              []meter
	More               string
	Training           []fact
}

func networkOf(r receipt.Receipt) network {
	result := network{}
	switch {
	case r.Network == nil && r.WorldSize() == 0:
		result.NotLogged = "No rank was started, so the transport between ranks is not known."
	case r.Network == nil:
		result.NotLogged = "The transport between the ranks is not known: NCCL logged nothing, as with gloo or on a single GPU."
	default:
		result.Training = withValues([]fact{
			{Name: "Transport of the slowest rank", Value: r.Network.Transport.DisplayName()},
			{Name: "NCCL", Value: strings.Join(r.Network.Versions, ", ")},
			{Name: "NCCL's network", Value: strings.Join(r.Network.Networks, ", ")},
		})
	}
	f := r.Fabric
	if f == nil {
		result.Missing = notChecked(r)
		return result
	}
	result.Verdict = map[fabric.Result]badge{
		fabric.Pass:           {"pass", "✓", "good"},
		fabric.Slow:           {"slow", "!", "warn"},
		fabric.WrongTransport: {"wrong transport", "✗", "bad"},
		fabric.Broken:         {"broken", "✗", "bad"},
	}[f.Verdict]
	if result.Verdict.Word == "" {
		result.Verdict = badge{truncate(string(f.Verdict), mostLine), "…", "open"}
	}
	result.Message = truncate(f.Message, mostText)
	result.Facts = fabricFacts(f)
	if drawn := bandwidthChart(f); !drawn.Empty() {
		result.Pictures = append(result.Pictures, pictureOf(drawn, bandwidthText(f)))
	}
	result.Rails, result.More = railMeters(f)
	return result
}

func notChecked(r receipt.Receipt) string {
	i := slices.IndexFunc(r.Phases, func(p receipt.Phase) bool { return p.Name == "check-fabric" })
	switch {
	case i >= 0 && r.Phases[i].Ended.IsZero():
		return "The network was not measured: check-fabric had not ended."
	case i >= 0:
		return "The receipt has no measurement though check-fabric ran: it " + string(r.Phases[i].Status) +
			", or its node was gone when the receipt was written."
	case r.WorldSize() == 0:
		return "The network was not measured: the run ended before check-fabric."
	}
	return "The network was not measured: check-fabric was not part of this run."
}

func fabricFacts(f *fabric.Report) []fact {
	expected := "not known: neither the ports' rates nor the cluster file have it"
	if f.Expected > 0 {
		expected = fmt.Sprintf("%s; %.0f%% of it was reached", f.Expected, 100*float64(f.Bandwidth)/float64(f.Expected))
	}
	return withValues([]fact{
		{Name: "Transport", Value: f.Transport},
		{Name: "Bus bandwidth of all_reduce", Value: onlyIf(f.Bandwidth > 0, f.Bandwidth.String())},
		{Name: "Expected", Value: expected},
		{Name: "Latency of the smallest", Value: onlyIf(f.Latency > 0, f.Latency.Round(100*time.Nanosecond).String())},
		{Name: "From the hosts' memory to the GPUs", Value: rangeOf(f, fabric.HostCopy)},
		{Name: "Between the memories of hosts, by RDMA", Value: rangeOf(f, fabric.HostRDMA)},
		{Name: "Devices", Value: kindsOf(f)},
		{Name: "Slow devices", Value: slowDevicesOf(f)},
		{Name: "At fault", Value: onlyIf(len(f.FaultyNodes) > 0, humanize.Nodes(f.FaultyNodes))},
		{Name: "Rails at fault", Value: strings.Join(f.FaultyRails, ", ")},
		{Name: "Measured with", Value: fmt.Sprintf("%s, %s of %s each", f.Backend, humanize.Count(f.Nodes, "node"),
			humanize.Count(f.RanksPerNode, "rank"))},
	})
}

// kindsOf describes the kinds of devices and their spread, a few of them.
func kindsOf(f *fabric.Report) string {
	var texts []string
	kinds, more := atMost(f.DeviceKinds, mostFindings, "kinds")
	for _, kind := range kinds {
		texts = append(texts, truncate(kind.Describe(), mostLine))
	}
	return strings.TrimSpace(strings.Join(texts, "; ") + " " + more)
}

func slowDevicesOf(f *fabric.Report) string {
	var texts []string
	slow, more := atMost(f.SlowDevices, mostFindings, "slow devices")
	for _, s := range slow {
		texts = append(texts, truncate(s.String(), mostLine))
	}
	return strings.TrimSpace(strings.Join(texts, "; ") + " " + more)
}

// rangeOf returns the range of an operation that the chart does not show, "" if it was not measured.
func rangeOf(f *fabric.Report, operation fabric.Operation) string {
	lowest, highest := fabric.BandwidthRange(f.Measurements, operation)
	if lowest == highest {
		return onlyIf(highest > 0, highest.String())
	}
	return fmt.Sprintf("%s to %s", lowest, highest)
}

func bandwidthChart(f *fabric.Report) chart.Chart {
	c := chart.Chart{Title: "Bus bandwidth by size", X: chart.Axis{Label: "size", Log: true, Ticks: sizes(f)},
		Y: chart.Axis{Label: "bus bandwidth in GB/s", FromZero: true}}
	for _, operation := range []fabric.Operation{fabric.AllReduce, fabric.AllGather, fabric.ReduceScatter, fabric.Broadcast} {
		s := chart.Series{Name: string(operation)}
		for _, m := range f.Measurements {
			if m.Operation == operation && m.Scope == fabric.World {
				s.Points = append(s.Points, chart.Point{X: float64(m.Bytes), Y: gbps(m.Bandwidth()), Label: humanize.Bytes(int64(m.Bytes)) + ": " +
					m.Bandwidth().String()})
			}
		}
		if len(s.Points) > 0 {
			c.Series = append(c.Series, s)
		}
	}
	if f.Expected > 0 {
		c.Levels = []chart.Level{{Name: "expected", Y: gbps(f.Expected)}}
	}
	return c
}

func bandwidthText(f *fabric.Report) string {
	return fmt.Sprintf("Bus bandwidth over all ranks by the size of the message; all_reduce reached %s%s.", f.Bandwidth,
		onlyIf(f.Expected > 0, fmt.Sprintf(" of %s expected", f.Expected)))
}

func sizes(f *fabric.Report) (ticks []chart.Tick) {
	var all []agent.Bytes
	for _, m := range f.Measurements {
		if m.Scope == fabric.World && !slices.Contains(all, m.Bytes) {
			all = append(all, m.Bytes)
		}
	}
	slices.Sort(all)
	for _, n := range all {
		ticks = append(ticks, chart.Tick{Value: float64(n), Label: humanize.Bytes(int64(n))})
	}
	return ticks
}

// railMeters returns the rails that were measured one by one, on a common scale.
func railMeters(f *fabric.Report) (bars []meter, more string) {
	var largest rdma.BytesPerSecond
	for _, rail := range f.Rails {
		largest = max(largest, rail.Bandwidth, rail.Expected)
	}
	rails, more := atMost(f.Rails, mostRails, "rails")
	for _, rail := range rails {
		b := meter{Name: truncate(rail.String(), mostLine), Text: "not measured alone", Class: "plain"}
		if rail.Bandwidth > 0 {
			b.Text = rail.Bandwidth.String()
			b.Width = float64(int(1000*float64(rail.Bandwidth)/float64(largest))) / 10
		}
		if rail.Expected > 0 {
			b.Text += ", expected " + rail.Expected.String()
		}
		if slices.Contains(f.FaultyRails, rail.String()) {
			b.Class, b.Text = "bad", "✗ "+b.Text
		}
		bars = append(bars, b)
	}
	return bars, more
}

func gbps(b rdma.BytesPerSecond) float64 { return float64(b) / float64(rdma.GBps) }
