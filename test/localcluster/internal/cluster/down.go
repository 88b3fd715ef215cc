// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/host"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Down removes the cluster and everything that it created on the machine, except the cache. With purge it also removes
// the cache. Without a cluster it does nothing.
func Down(ctx context.Context, purge bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("not root: what up made belongs to root; run with sudo")
	}
	cacheDir, err := topology.CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(cacheDir)
	if err != nil {
		return err
	}
	defer unlock()
	p := &progress{out: out}
	start := time.Now()
	if err := takeDown(ctx); err != nil {
		return err
	}
	p.say("the cluster is down (%.1fs)", time.Since(start).Seconds())
	if !purge {
		p.say("the cache stays: %s", cacheDir)
		return nil
	}
	return os.RemoveAll(cacheDir)
}

// takeDown removes a cluster in any state, and does nothing without one. It deletes the record of the machine's state
// last, so that an interrupted takeDown can be repeated.
func takeDown(ctx context.Context) error {
	cgroups, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	if err := cgroups.KillAll(topology.CgroupRoot); err != nil {
		return err
	}
	if err := host.UnmountBelow(topology.StateDir); err != nil {
		return err
	}
	if err := host.Down(ctx); err != nil {
		return err
	}
	if err := cgroups.Remove(topology.CgroupRoot); err != nil {
		return err
	}
	if err := restoreHost(ctx); err != nil {
		return err
	}
	return os.RemoveAll(topology.StateDir)
}
