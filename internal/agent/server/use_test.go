// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// smiOf installs an nvidia-smi that reports one GPU with the utilization in a file, which it returns.
func smiOf(t *testing.T, uuid, memory string) (utilization string) {
	t.Helper()
	dir := t.TempDir()
	utilization = filepath.Join(dir, "utilization")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in --query-gpu*) echo \"0, %s, NVIDIA H100, 570.1, 81559, %s, $(cat '%s'), 61, 0x0, None, 0, "+
		"00000000:10:00.0, Disabled, 9.0\";; esac\n", uuid, memory, utilization)
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	write(t, utilization, "0")
	return utilization
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLastUse: the agent reports its last use by its own clock. What runs is use as long as it runs; syncing and asking are none.
func TestLastUse(t *testing.T) {
	smiOf(t, "GPU-0", "0")
	var passed atomic.Int64 // since the start
	began := time.Now()
	made := agenttest.StartWith(t, 1, agenttest.Options{Now: func() time.Time { return began.Add(time.Duration(passed.Load())) }})[0]
	n := &node{t: t, Node: made}
	after := func(what string, pass time.Duration, kind agent.UseKind, idle time.Duration) {
		t.Helper()
		passed.Add(int64(pass))
		got, err := n.Client.LastUse(t.Context())
		if err != nil || got.Kind != kind || got.Idle != idle || !got.At.Equal(began.Add(time.Duration(passed.Load())-idle)) {
			t.Errorf("%s: %+v, %v; want %q %s ago", what, got, err, kind, idle)
		}
	}
	after("new", time.Hour, agent.StartUse, time.Hour)
	putTree(t, made)
	if _, err := n.Client.Facts(t.Context()); err != nil {
		t.Fatal(err)
	}
	after("a synced tree", time.Hour, agent.StartUse, 2*time.Hour)
	n.script("long.sh", "exec sleep 1000")
	if _, err := n.Client.StartJob(t.Context(), "job-1", command("long.sh")); err != nil {
		t.Fatal(err)
	}
	after("a job runs", 3*time.Hour, agent.JobUse, 0)
	if err := n.Client.StopJob(t.Context(), "job-1", agent.Stop{}); err != nil {
		t.Fatal(err)
	}
	n.wait("job-1")
	after("the job has ended", time.Hour, agent.JobUse, time.Hour)
	if err := n.Client.KeepShell(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	after("a shell is open", time.Hour, agent.ShellUse, 0)
	if err := n.Client.EndShell(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	after("the shell has ended", time.Hour, agent.ShellUse, time.Hour)
	if err := n.Client.BeginUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	after("requested again", time.Minute, agent.StartUse, time.Minute)
}

// TestGPUsInUse: a program that no job and no shell knows of uses the node while a GPU computes. nvidia-smi shows no utilization of some.
func TestGPUsInUse(t *testing.T) {
	for _, tc := range []struct {
		name, uuid, memory, utilization string
		want                            bool
	}{
		{"busy", "GPU-0", "40000", "3", true},
		{"only its memory is taken", "GPU-0", "40000", "0", false},
		{"a MIG device with a program", "MIG-0", "4000", "[N/A]", true},
		{"a MIG device without one", "MIG-0", "12", "[N/A]", false},
		{"a GPU without utilization that has a program", "GPU-0", "4000", "[N/A]", true},
		{"a GPU without utilization and without one", "GPU-0", "12", "[N/A]", false},
		{"nvidia-smi fails", "GPU-0", "0", "\nnone", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			write(t, smiOf(t, tc.uuid, tc.memory), tc.utilization)
			began := time.Now()
			var later atomic.Bool
			node := agenttest.StartWith(t, 1, agenttest.Options{Now: func() time.Time {
				if later.Load() {
					return began.Add(3 * time.Hour)
				}
				return began
			}})[0]
			later.Store(true)
			got, err := node.Client.LastUse(t.Context())
			if used := got.Kind == agent.GPUUse && got.Idle == 0; err != nil || used != tc.want {
				t.Errorf("%+v, %v; want it in use: %t", got, err, tc.want)
			}
		})
	}
}

// TestReaperMayOnlyReadUse: with its certificate a client may do nothing else, by any path of the protocol.
func TestReaperMayOnlyReadUse(t *testing.T) {
	smiOf(t, "GPU-0", "0")
	node := agenttest.Start(t, 1)[0]
	hash, _ := putTree(t, node)
	made := node.Certificates()
	credentials, err := agent.ParseCredentials(made.CA, made.ReaperCert, made.ReaperKey)
	if err != nil {
		t.Fatal(err)
	}
	reaper := agent.NewClient(0, node.Config.Host(0), credentials, node.Dial)
	defer reaper.Close()
	if _, err := reaper.LastUse(t.Context()); err != nil {
		t.Error(err)
	}
	refused := refusals(reaper, hash)
	refused["beginning a use"] = reaper.BeginUse
	for what, call := range refused {
		if err := call(t.Context()); fail.ReasonOf(err) != fail.PermissionDenied {
			t.Errorf("%s: %v, want PermissionDenied", what, err)
		}
	}
}
