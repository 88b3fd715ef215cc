// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// logBytes is what a rank prints in the benchmarks.
const logBytes = 400_000_000

// printing returns a job whose rank prints lines.
func printing(b *testing.B, n *agenttest.Node) agent.JobSpec {
	b.Helper()
	line := append([]byte("step 12345 loss 0.123456 lr 1.00e-04 tokens/s 123456.7 grad_norm 0.9876 memory 12.34 GiB eta 1:23:45"), '\n')
	file, err := os.Create(filepath.Join(n.Config.Paths.Workspace, "lines"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	var block []byte
	for len(block) < 1<<20 {
		block = append(block, line...)
	}
	for left := logBytes; left > 0; left -= len(block) {
		if _, err := file.Write(block[:min(left, len(block))]); err != nil {
			b.Fatal(err)
		}
	}
	return agent.JobSpec{Run: "run", Launcher: agent.Command, Script: "/bin/cat", Args: []string{file.Name()}, Nodes: 1, RanksPerNode: 1}
}

// BenchmarkLog follows a rank while it prints, and reads its log again. For comparison, it copies the same amount over TLS
// alone.
func BenchmarkLog(b *testing.B) {
	n := agenttest.Start(b, 1)[0]
	spec := printing(b, n)
	read := func(b *testing.B, id string) {
		b.Helper()
		log, err := n.Client.Log(b.Context(), id, agent.RankLog+"0", 0, true)
		if err != nil {
			b.Fatal(err)
		}
		defer log.Close()
		if got, err := io.Copy(io.Discard, log); got != logBytes || err != nil {
			b.Fatal(got, err)
		}
	}
	b.Run("follow", func(b *testing.B) {
		b.SetBytes(logBytes)
		for i := 0; b.Loop(); i++ {
			id := "job-" + strconv.Itoa(i) + "-" + strconv.Itoa(b.N)
			if _, err := n.Client.StartJob(b.Context(), id, spec); err != nil {
				b.Fatal(err)
			}
			read(b, id)
		}
	})
	b.Run("back", func(b *testing.B) {
		if _, err := n.Client.StartJob(b.Context(), "back", spec); err != nil {
			b.Fatal(err)
		}
		read(b, "back")
		b.SetBytes(logBytes)
		b.ResetTimer()
		for b.Loop() {
			read(b, "back")
		}
	})
	b.Run("TLS alone", func(b *testing.B) { copyTLS(b, n, spec.Args[0]) })
}

// copyTLS copies a file over TLS with the same certificates, without HTTP.
func copyTLS(b *testing.B, n *agenttest.Node, path string) {
	b.Helper()
	made := n.Certificates()
	var sides [2]agent.Credentials
	for i, pem := range [2][2][]byte{{made.ServerCert, made.ServerKey}, {made.ClientCert, made.ClientKey}} {
		var err error
		if sides[i], err = agent.ParseCredentials(made.CA, pem[0], pem[1]); err != nil {
			b.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", n.Config.PodIP+":0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	b.SetBytes(logBytes)
	for b.Loop() {
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			file, err := os.Open(path)
			if err != nil {
				return
			}
			defer file.Close()
			out := tls.Server(conn, sides[0].ServerTLS())
			_, _ = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{file}, make([]byte, 256<<10))
			_ = out.Close()
		}()
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS13, ServerName: n.Config.Host(0),
			RootCAs: sides[1].CA, Certificates: []tls.Certificate{sides[1].Certificate}})
		if err != nil {
			b.Fatal(err)
		}
		if got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, conn, make([]byte, 256<<10)); got != logBytes || err != nil {
			b.Fatal(got, err)
		}
		_ = conn.Close()
	}
}
