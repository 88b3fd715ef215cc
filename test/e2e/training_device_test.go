// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// namesTheRank matches what check-fabric prints of the rank of node 1.
var namesTheRank = regexp.MustCompile(`measuring the devices: rank \d of node 1 \(node-\d\), .*: matrix product .*FLOP/s, ` +
	`\d+% below the other one's `)

// slowDevice tests that check-fabric names the rank whose processor is throttled, and that the same ranks pass without that.
func slowDevice(u trainer) {
	u.task("provision", "--param=nodes=2", oneGPU, "--param=keep-for=30m")
	const kinds = ": 2 devices, matrix product (float32) "
	out, code := u.mlenv("check-fabric", "--fabric-bandwidth=fail")
	u.equal("exit code of mlenv check-fabric with healthy nodes", strconv.Itoa(code), "0")
	u.mustContain(out, kinds)

	restore := u.throttle("ml-dev-env-1")
	defer restore()
	const timeForAThrottledRank = 6 * time.Minute // it takes long to import torch
	out, code = u.mlenv("check-fabric", "--fabric-bandwidth=fail", within(timeForAThrottledRank))
	restore()
	u.equal("exit code of mlenv check-fabric with a throttled rank", strconv.Itoa(code), "1")
	u.mustContain(out, kinds, "exclude-nodes=node-")
	if !namesTheRank.MatchString(out) {
		u.Errorf("check-fabric printed no %s:\n%s", namesTheRank, shortened(out))
	}
	u.task("teardown")
}

// throttle lets the container of a node run for a twentieth of the time, until restore is called: also next to a rank that shares its
// processor with other programs it is slow.
func (u trainer) throttle(pod string) (restore func()) {
	u.Helper()
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(u.agentProcess(pod)) + "/cgroup")
	if err != nil {
		u.Fatal(err)
	}
	const root = "/sys/fs/cgroup"
	file, slow := "", "5000"
	for line := range strings.Lines(string(groups)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		switch {
		case slices.Contains(strings.Split(controllers, ","), "cpu"): // version 1
			file, slow = filepath.Join(root, controllers, path, "cpu.cfs_quota_us"), "5000"
		case number == "0" && file == "":
			file, slow = filepath.Join(root, path, "cpu.max"), "5000 100000"
		}
	}
	before, err := os.ReadFile(file)
	if err != nil {
		u.Fatal(err)
	}
	write := func(quota string) {
		u.Helper()
		if err := os.WriteFile(file, []byte(quota), 0o644); err != nil {
			u.Fatal(err)
		}
	}
	write(slow)
	return sync.OnceFunc(func() { write(strings.TrimSpace(string(before))) })
}
