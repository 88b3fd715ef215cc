// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func nodeVariables(rank, pod, nodes string) []string {
	return []string{"MLENV_NAME=env", "MLENV_HEADLESS=env-headless.ns.svc", "NODE_RANK=" + rank, "NUM_NODES=" + nodes, "GPUS_PER_NODE=2",
		"POD_NAME=" + pod, "POD_IP=10.0.0.1"}
}

func TestNodeRank(t *testing.T) {
	for _, tc := range []struct {
		rank, pod, nodes string
		want             int // -1 for an error
	}{
		{"1", "env-1", "2", 1},
		{"", "env-1", "2", 1}, // without the label of the ordinal
		{"", "other-1", "2", -1},
		{"", "env-", "2", -1},
		{"first", "env-1", "2", -1},
		{"-1", "env-1", "2", -1},
		{"2", "env-2", "2", -1},
		{"0", "env-0", "", -1},
	} {
		c, err := ReadConfig("test", nodeVariables(tc.rank, tc.pod, tc.nodes))
		if (err != nil) != (tc.want < 0) || err == nil && (c.Node != tc.want || c.environment()["NODE_RANK"] != strconv.Itoa(tc.want)) {
			t.Errorf("NODE_RANK=%q of %s: got node %d, NODE_RANK=%s, %v; want %d", tc.rank, tc.pod, c.Node, c.environment()["NODE_RANK"], err,
				tc.want)
		}
	}
}

func TestStopGraceOfANode(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 30 * time.Second, "10m0s": 10 * time.Minute, "soon": 0, "-1s": 0} {
		environ := nodeVariables("0", "env-0", "1")
		if value != "" {
			environ = append(environ, "MLENV_STOP_GRACE="+value)
		}
		c, err := ReadConfig("test", environ)
		if (err == nil) != (want > 0) || err == nil && c.stopGrace() != want {
			t.Errorf("MLENV_STOP_GRACE=%s: got %s, %v; want %s", value, c.stopGrace(), err, want)
		}
	}
	// The agent records within the container's time how its ranks ended.
	for grace, want := range map[time.Duration]time.Duration{30 * time.Second: 25 * time.Second, 3 * time.Second: 2 * time.Second,
		0: 25 * time.Second} {
		if got := (Config{StopGrace: grace}).containerGrace(); got != want {
			t.Errorf("a container with %s leaves its ranks %s, want %s", grace, got, want)
		}
	}
}

// An environment that shares the workspace, by its name or because the cluster file names the claim, has a folder of its own there.
func TestSharedWorkspace(t *testing.T) {
	for name, tc := range map[string]struct{ name, shares, want string }{
		"its own":          {"kim", "", ""},
		"the default's":    {"ml-dev-env", "", ""},
		"by its name":      {"ml-dev-env-kim", "", "/workspace/.mlenv/environments/ml-dev-env-kim"},
		"the cluster file": {"kim", "true", "/workspace/.mlenv/environments/kim"},
	} {
		own := []string{"MLENV_NAME=" + tc.name, "MLENV_SHARES_WORKSPACE=" + tc.shares}
		c, err := ReadConfig("test", append(own, nodeVariables("0", "kim-0", "1")[1:]...))
		if err != nil || c.Paths.Own != tc.want {
			t.Errorf("%s: got %q, %v; want %q", name, c.Paths.Own, err, tc.want)
		}
	}
}

// TestNodeCaches: on the node's own disk Hugging Face's cache is whole, with its locks. The user's login stays on the claim.
func TestNodeCaches(t *testing.T) {
	for onNode, want := range map[string]map[string]string{
		"": {"HF_HOME": "/workspace/.mlenv/cache/huggingface", "HF_TOKEN_PATH": "",
			"TORCHINDUCTOR_CACHE_DIR": "/workspace/.mlenv/cache/node-0/inductor", "TRITON_CACHE_DIR": "/workspace/.mlenv/cache/node-0/triton",
			"TORCH_EXTENSIONS_DIR": "/workspace/.mlenv/cache/node-0/torch-extensions"},
		"true": {"HF_HOME": "/mlenv/run/cache/huggingface", "HF_TOKEN_PATH": "/workspace/.mlenv/cache/huggingface/token",
			"TORCHINDUCTOR_CACHE_DIR": "/mlenv/run/cache/inductor", "TRITON_CACHE_DIR": "/mlenv/run/cache/triton",
			"TORCH_EXTENSIONS_DIR": "/workspace/.mlenv/cache/node-0/torch-extensions"},
	} {
		c, err := ReadConfig("test", append(nodeVariables("0", "env-0", "1"), "MLENV_NODE_CACHES="+onNode))
		if err != nil {
			t.Fatal(err)
		}
		got := c.additions()
		for name, path := range want {
			if got[name] != path {
				t.Errorf("MLENV_NODE_CACHES=%q: %s is %q, want %q", onNode, name, got[name], path)
			}
		}
	}
}

// DeepSpeed's launcher starts a rank on a node without GPUs, too.
func TestHostfileWithoutGPUs(t *testing.T) {
	c, err := ReadConfig("test", nodeVariables("0", "env-0", "1"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.GPUs, c.Paths.Workspace, c.Paths.Home = 0, dir, dir
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, ".deepspeed", "hostfile"))
	if want := c.Host(0) + " slots=1\n"; err != nil || string(got) != want {
		t.Errorf("hostfile %q (%v), want %q", got, err, want)
	}
}

// The hostfile lists each node once, in order, whatever the pod's variables are.
func FuzzNodeRank(f *testing.F) {
	f.Add("1", "env-1", "2")
	f.Add("", "env-0", "1")
	f.Add("0x1", "env-\n", "-3")
	f.Fuzz(func(t *testing.T, rank, pod, nodes string) {
		c, err := ReadConfig("test", nodeVariables(rank, pod, nodes))
		if err != nil {
			return
		}
		if c.Node < 0 || c.Node >= c.Nodes {
			t.Errorf("node %d of %d", c.Node, c.Nodes)
		}
		if c.Nodes > 64 {
			return
		}
		dir := t.TempDir()
		c.Paths.Workspace, c.Paths.Home = dir, dir
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, ".deepspeed", "hostfile"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
		if len(lines) != c.Nodes {
			t.Fatalf("%d lines for %d nodes: %q", len(lines), c.Nodes, content)
		}
		for node, line := range lines {
			if want := c.Host(node) + " slots=2"; line != want {
				t.Errorf("line %d is %q, want %q", node, line, want)
			}
		}
	})
}
