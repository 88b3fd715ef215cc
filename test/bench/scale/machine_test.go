// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

// machine describes the machine and what it does during a measurement.
type machine struct {
	b      *testing.B
	when   string
	before []string
	began  time.Time
	// busy and ours are the seconds of CPU time of all programs, and of the benchmark's, until began.
	busy, ours float64
}

func beginMachine(b *testing.B) machine {
	check(b, report.Reproducible())
	return machine{b: b, when: report.When(), before: report.Machine("all nodes, the control plane and the steps"), began: time.Now(),
		busy: busySeconds(b), ours: ourSeconds(b)}
}

// facts describes the machine until now. All programs that the benchmark started must have ended.
func (m machine) facts() []string {
	took := time.Since(m.began)
	ours, all := ourSeconds(m.b)-m.ours, busySeconds(m.b)-m.busy
	return append(m.before, fmt.Sprintf("the measurement took %s and used %s of the cores on average, other programs %s",
		took.Round(time.Second), number(ours/took.Seconds()), number(max(0, all-ours)/took.Seconds())))
}

// ourSeconds returns the CPU time of this program and of those that it started and that have ended.
func ourSeconds(b *testing.B) float64 { return cpuSeconds(b) + usedBy(b, syscall.RUSAGE_CHILDREN) }

// busySeconds returns the machine's CPU time that was not idle.
func busySeconds(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/stat")
	check(b, err)
	var user, nice, system, idle, waiting, interrupts, soft, steal float64
	_, err = fmt.Fscan(strings.NewReader(strings.TrimPrefix(string(text), "cpu")), &user, &nice, &system, &idle, &waiting, &interrupts,
		&soft, &steal)
	check(b, err)
	const ticksPerSecond = 100
	return (user + nice + system + interrupts + soft + steal) / ticksPerSecond
}
