// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tree has two devices, of 100 Gb/s and 40 Gb/s, with this machine's address. At a four-hundredth of these rates a busy machine
// keeps up.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for device, files := range map[string]map[string]string{
		"mlx5_6": {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)"},
		"mlx5_7": {"state": "4: ACTIVE", "rate": "40 Gb/sec (4X QDR)"},
		"mlx5_8": {"state": "1: DOWN", "rate": "40 Gb/sec (4X QDR)"},
	} {
		files["link_layer"], files["gids/3"], files["gid_attrs/ndevs/3"] = "Ethernet", "0000:0000:0000:0000:0000:ffff:7f00:0001", "net1"
		for name, content := range files {
			path := filepath.Join(root, "sys/class/infiniband", device, "ports/1", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func TestWrite(t *testing.T) {
	root := tree(t)
	for device, most := range map[string]float64{"mlx5_6": 0.25, "mlx5_7": 0.1} {
		args := []string{"-d", device, "-i", "1", "-x", "3", "-F", "--report_gbits", "-D", "1", "-p", freePort(t), "--tclass=106"}
		var server, client bytes.Buffer
		ended := make(chan int)
		go func() { ended <- Run(args, root, &server, &server) }()
		code := 1
		const timeForTheServerToListen = time.Minute
		for began := time.Now(); code != 0 && time.Since(began) < timeForTheServerToListen; {
			client.Reset()
			code = Run(append(args, "127.0.0.1"), root, &client, &client)
			time.Sleep(20 * time.Millisecond)
		}
		if code != 0 || <-ended != 0 {
			t.Fatalf("client %d:\n%s\nserver:\n%s", code, &client, &server)
		}
		lines := strings.Split(strings.TrimSpace(client.String()), "\n")
		row := strings.Fields(lines[len(lines)-2])
		if len(row) != 5 || row[0] != "65536" || !strings.Contains(lines[len(lines)-3], "BW average[Gb/sec]") {
			t.Fatalf("the output is\n%s", &client)
		}
		if average, err := strconv.ParseFloat(row[3], 64); err != nil || average > most*1.05 || average < most/2 {
			t.Errorf("%s: %s Gb/s, want nearly %g", device, row[3], most)
		}
	}
}

func TestErrors(t *testing.T) {
	root := tree(t)
	for want, args := range map[string][]string{
		"Invalid Command or flag":      {"--mystery"},
		"IB device mlx5_0 not found":   {"-d", "mlx5_0", "--report_gbits"},
		"Port number 1 state is Down":  {"-d", "mlx5_8", "-x", "3", "--report_gbits"},
		"Failed to modify QP":          {"-d", "mlx5_6", "-x", "0", "--report_gbits"},
		"Couldn't connect to 127.0.0.": {"-d", "mlx5_6", "-x", "3", "--report_gbits", "-p", freePort(t), "127.0.0.1"},
	} {
		var out bytes.Buffer
		if code := Run(args, root, &out, &out); code != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("%v: code %d, %q; want 1 and %q", args, code, &out, want)
		}
	}
}
