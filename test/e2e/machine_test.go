// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// machine lists what a cluster could leave behind: its processes, and every namespace, mount,
// cgroup, firewall rule, interface, kernel setting and file in folders that such programs write
// to.
func machine(t *testing.T) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	add := func(kind string, lines ...string) {
		for _, l := range lines {
			seen[kind+" "+l] = true
		}
	}
	add("mount", mountPoints(t)...)
	add("interface", names(t, "/sys/class/net")...)
	add("netns", names(t, "/run/netns")...)
	for _, dir := range []string{"/run", "/var/lib", "/var/log", "/etc/cni", "/opt/cni", "/var/lib/cni", "/run/containerd"} {
		add("file "+dir, names(t, dir)...)
	}
	delete(seen, "file /run mount") // the first mount(8) since the machine's start creates it, whoever calls it
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		// Other programs on the machine create cgroups of their own and do not remove them.
		if err == nil && d.IsDir() && strings.Contains(path, "ml-dev-env") {
			add("cgroup", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		out, err := exec.Command(program).Output()
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			// Rules, and chains that are not the kernel's own (those have a policy).
			if strings.HasPrefix(line, "-A") || strings.HasPrefix(line, ":") && strings.Contains(line, " - ") {
				add(program, strings.Split(line, " [")[0])
			}
		}
	}
	for _, setting := range []string{"net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", setting)); err == nil {
			add("setting", setting+"="+strings.TrimSpace(string(value)))
		}
	}
	routes, err := exec.Command("ip", "route").Output()
	if err != nil {
		t.Fatal(err)
	}
	add("route", strings.Split(strings.TrimSpace(string(routes)), "\n")...)
	for _, p := range processes(t) {
		for _, program := range []string{"localcluster", "kube", "etcd", "containerd", "coredns", "pause", "ko-app"} {
			if strings.HasPrefix(filepath.Base(strings.Fields(p + " -")[0]), program) {
				add("process", p)
			}
		}
	}
	return seen
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func mountPoints(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		list = append(list, strings.Fields(lines.Text())[4])
	}
	return list
}

func processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err == nil && len(content) > 0 {
			list = append(list, strings.TrimSpace(strings.ReplaceAll(string(content), "\x00", " ")))
		}
	}
	return list
}

// difference lists the entries that are in only one of the two states.
func difference(before, after map[string]bool) string {
	var lines []string
	for s := range after {
		if !before[s] {
			lines = append(lines, "+ "+s)
		}
	}
	for s := range before {
		if !after[s] {
			lines = append(lines, "- "+s)
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
