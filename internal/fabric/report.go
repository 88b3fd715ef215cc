package fabric

import (
	"fmt"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// Verdict is what a check found.
type Verdict string

// The verdicts.
const (
	// Pass: the network does what it should, as far as anything is expected.
	Pass Verdict = "pass"
	// Slow: the bandwidth, or that of a node or rail, is below what it should be.
	Slow Verdict = "slow"
	// WrongTransport: ranks talk over sockets though the environment is one with RDMA.
	WrongTransport Verdict = "wrong-transport"
	// Broken: ranks do not reach each other, or hang.
	Broken Verdict = "broken"
	// NotMeasured: nothing could be measured, for no fault of the network's.
	NotMeasured Verdict = "not-measured"
)

// Report is what a check found. It is part of the receipt, docs/receipt.md.
type Report struct {
	Verdict Verdict `json:"verdict"`
	Message string  `json:"message,omitempty"`
	// Mode is the environment's.
	Mode    string  `json:"mode"`
	Backend Backend `json:"backend"`
	// Transport is in words: NCCL's, or "gloo over net1".
	Transport string `json:"transport,omitempty"`
	// Network is what NCCL's logs show, without its processes; nil with gloo.
	Network *nccl.Summary `json:"network,omitempty"`
	Nodes   int           `json:"nodes"`
	// KubernetesNodes are where the nodes are, "" for one that is not known.
	KubernetesNodes []string `json:"kubernetesNodes,omitempty"`
	RanksPerNode    int      `json:"ranksPerNode"`
	// Bandwidth is the highest bus bandwidth of all_reduce over all ranks.
	Bandwidth rdma.BytesPerSecond `json:"bandwidthBytesPerSecond"`
	// Expected is what it should be, 0 where nothing is expected.
	Expected rdma.BytesPerSecond `json:"expectedBytesPerSecond,omitempty"`
	// Latency is the time of the smallest all_reduce, in nanoseconds.
	Latency time.Duration `json:"latencyNanoseconds,omitempty"`
	Rails   []Rail        `json:"rails,omitempty"`
	// FaultyNodes and FaultyRails are slow ones, or those that do not answer.
	FaultyNodes []int    `json:"faultyNodes,omitempty"`
	FaultyRails []string `json:"faultyRails,omitempty"`
	// Sockets is the bus bandwidth over TCP on the pod network, where it was asked for.
	Sockets      rdma.BytesPerSecond `json:"socketsBytesPerSecond,omitempty"`
	Findings     []nccl.Finding      `json:"findings,omitempty"`
	Measurements []Measurement       `json:"measurements,omitempty"`
	Seconds      float64             `json:"seconds"`
}

// Rail is one network of the environment, and what is measured of it alone.
type Rail struct {
	// Name is the interface or device, where the nodes differ of the first; Network its subnet.
	Name      string              `json:"name"`
	Network   string              `json:"network,omitempty"`
	Bandwidth rdma.BytesPerSecond `json:"bandwidthBytesPerSecond,omitempty"`
	// Expected is what the slowest node's port should give, 0 where nothing is expected.
	Expected rdma.BytesPerSecond `json:"expectedBytesPerSecond,omitempty"`
}

const (
	// enough is the part of the expected bandwidth below which it is slow. Rings that cross
	// between racks at every hop gave 54 to 84% of it, healthy ones 97 and more.
	enough = 0.85
	// alike is the part of the best node's or rail's bandwidth below which another is
	// slow, where nothing is expected: links of one kind differ by less.
	alike = 0.5
)

// Judge fills in from the measurements what was reached, and decides whether that is
// enough. Verdict and Message that are set already stay.
func (r *Report) Judge() {
	r.Bandwidth = Best(r.Measurements)
	for _, m := range r.Measurements {
		if m.Operation == AllReduce && m.Scope == World && (r.Latency == 0 || m.Time < r.Latency) {
			r.Latency = m.Time
		}
	}
	for i := range r.Rails {
		r.Rails[i].Bandwidth = best(r.Measurements, AllReduce, ByRail, func(m Measurement) bool { return m.Rail == i })
	}
	if r.Verdict != "" {
		return
	}
	r.Verdict = Pass
	var slow []string
	if r.Expected > 0 && below(r.Bandwidth, r.Expected, enough) {
		slow = append(slow, fmt.Sprintf("bus bandwidth %s, expected %s: %s of it", r.Bandwidth, r.Expected, percent(r.Bandwidth, r.Expected)))
	}
	slow = append(slow, r.slowNodes()...)
	slow = append(slow, r.slowRails()...)
	if len(slow) > 0 {
		r.Verdict, r.Message = Slow, strings.Join(slow, "; ")
	}
}

// slowNodes compares the pairs of nodes.
func (r *Report) slowNodes() []string {
	var fastest, slowest rdma.BytesPerSecond
	var pairs []Measurement
	for _, m := range r.Measurements {
		if m.Scope == InPair {
			pairs = append(pairs, m)
			fastest = max(fastest, m.Bandwidth())
		}
	}
	var good, bad []Pair
	for _, m := range pairs {
		b := m.Bandwidth()
		if below(b, fastest, alike) || r.Expected > 0 && below(b, r.Expected, enough) {
			bad = append(bad, m.Pair)
			if slowest == 0 || b < slowest {
				slowest = b
			}
			continue
		}
		good = append(good, m.Pair)
	}
	faulty := Faulty(good, bad)
	// Where all are slow alike it is the network, and no node.
	if len(faulty) == 0 || len(good) == 0 && r.Nodes > 2 {
		return nil
	}
	r.FaultyNodes = faulty
	if r.Nodes == 2 {
		return []string{fmt.Sprintf("nodes 0 and 1 exchange %s", slowest)}
	}
	return []string{fmt.Sprintf("%s: pairs with it exchange down to %s, others up to %s", NodesAt(faulty, r.KubernetesNodes), slowest, fastest)}
}

// slowRails compares the rails with what each should give, or with each other.
func (r *Report) slowRails() (slow []string) {
	var fastest rdma.BytesPerSecond
	for _, rail := range r.Rails {
		fastest = max(fastest, rail.Bandwidth)
	}
	for _, rail := range r.Rails {
		switch {
		case rail.Bandwidth == 0:
			continue // there was no time for it
		case rail.Expected > 0 && below(rail.Bandwidth, rail.Expected, enough):
			slow = append(slow, fmt.Sprintf("rail %s: %s, expected %s", rail, rail.Bandwidth, rail.Expected))
		case below(rail.Bandwidth, fastest, alike):
			slow = append(slow, fmt.Sprintf("rail %s: %s, another has %s", rail, rail.Bandwidth, fastest))
		default:
			continue
		}
		r.FaultyRails = append(r.FaultyRails, rail.String())
	}
	return slow
}

// String is "net1 (10.0.103.0/24)".
func (r Rail) String() string {
	if r.Network == "" {
		return r.Name
	}
	return fmt.Sprintf("%s (%s)", r.Name, r.Network)
}

// NodeNames is "node 2", "nodes 1 and 4".
func NodeNames(nodes []int) string {
	var numbers []string
	for _, node := range nodes {
		numbers = append(numbers, fmt.Sprint(node))
	}
	switch last := len(numbers) - 1; last {
	case -1:
		return "no node"
	case 0:
		return "node " + numbers[0]
	default:
		return "nodes " + strings.Join(numbers[:last], ", ") + " and " + numbers[last]
	}
}

// NodesAt is nodes with where they are, as far as that is known: "node 1 (wrk-97)".
func NodesAt(nodes []int, kubernetesNodes []string) string {
	text := NodeNames(nodes)
	var where []string
	for _, node := range nodes {
		if node < len(kubernetesNodes) && kubernetesNodes[node] != "" {
			where = append(where, kubernetesNodes[node])
		}
	}
	if len(where) == 0 {
		return text
	}
	return fmt.Sprintf("%s (%s)", text, strings.Join(where, ", "))
}

func below(b, of rdma.BytesPerSecond, part float64) bool {
	return float64(b) < float64(of)*part
}

func percent(b, of rdma.BytesPerSecond) string {
	return fmt.Sprintf("%.0f%%", 100*float64(b)/float64(of))
}

// Summary is the verdict in one line for people.
func (r *Report) Summary() string {
	text := fmt.Sprintf("%s: %s of %s each", r.Verdict, humanize.Count(r.Nodes, "node"), humanize.Count(r.RanksPerNode, "rank"))
	if r.Transport != "" {
		text += ", " + r.Transport
	}
	if r.Bandwidth > 0 {
		text += fmt.Sprintf(", bus bandwidth %s", r.Bandwidth)
	}
	if r.Expected > 0 {
		text += fmt.Sprintf(" of %s expected", r.Expected)
	}
	if r.Latency > 0 {
		text += fmt.Sprintf(", latency %s", r.Latency.Round(100*time.Nanosecond))
	}
	return text
}
