package program

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

func TestRDMA(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, errors bytes.Buffer
		code = Main(append([]string{"mlenv-agent", "rdma"}, args...), nil, &out, &errors)
		return code, out.String(), errors.String()
	}
	const none = "broken: NoDevice: looking for RDMA devices: there are none in /sys/class/infiniband"
	const finding = "NoDevice (broken)\n  seen: looking for RDMA devices: there are none in /sys/class/infiniband"
	if code, out, _ := run("--sys-root=" + root); code != 0 || !strings.Contains(out, finding) || !strings.Contains(out, "sysfs is read from "+root) {
		t.Errorf("a tree without devices: exit code %d, %q; want 0 and %q", code, out, finding)
	}
	if code, out, _ := run("--check", "--sys-root="+root); code != 1 || !strings.HasPrefix(out, none) || strings.Count(out, "\n") != 1 {
		t.Errorf("--check: exit code %d, %q; want 1 and one line", code, out)
	}
	var facts rdma.Facts
	if code, out, _ := run("--json", "--sys-root="+root); code != 0 || json.Unmarshal([]byte(out), &facts) != nil || !facts.Broken() {
		t.Errorf("--json: exit code %d, %q; want 0 and the facts", code, out)
	}
	for _, wrong := range [][]string{{"--check", "--json"}, {"--no-such-flag"}, {"node"}} {
		if code, out, errors := run(wrong...); code != 2 || out != "" || errors == "" {
			t.Errorf("%q: exit code %d, %q, %q; want 2 and a message", wrong, code, out, errors)
		}
	}
}
