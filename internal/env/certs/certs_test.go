// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

func certificate(t *testing.T, content []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(content)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %s", content)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificates(t *testing.T) {
	now := time.Now()
	// This is the longest name that is allowed.
	name := strings.Repeat("n", 52)
	made, err := New("nccl-test", name, now, false)
	if err != nil {
		t.Fatal(err)
	}
	ca, server, client := certificate(t, made.CA), certificate(t, made.ServerCert), certificate(t, made.ClientCert)
	metrics, reaper := certificate(t, made.MetricsCert), certificate(t, made.ReaperCert)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	node := names.Of("nccl-test", name).TLSName(12)
	tests := []struct {
		what  string
		cert  *x509.Certificate
		name  string
		usage x509.ExtKeyUsage
		at    time.Time
		valid bool
	}{
		{"a node", server, node, x509.ExtKeyUsageServerAuth, now, true},
		{"a node by its whole name", server, node + ".cluster.local", x509.ExtKeyUsageServerAuth, now, true},
		{"a node from its own container", server, "localhost", x509.ExtKeyUsageServerAuth, now, true},
		{"a node as others' clocks are behind", server, node, x509.ExtKeyUsageServerAuth, now.Add(-50 * time.Minute), true},
		{"a node after 364 days", server, node, x509.ExtKeyUsageServerAuth, now.AddDate(0, 0, 364), true},
		{"a node after 366 days", server, node, x509.ExtKeyUsageServerAuth, now.AddDate(0, 0, 366), false},
		{"a node of another namespace", server, names.Of("other", name).TLSName(0), x509.ExtKeyUsageServerAuth, now, false},
		{"a node of another environment", server, names.Of("nccl-test", "h-kim").TLSName(0), x509.ExtKeyUsageServerAuth, now, false},
		{"a node as a client", server, "", x509.ExtKeyUsageClientAuth, now, false},
		{"a step", client, "", x509.ExtKeyUsageClientAuth, now, true},
		{"a step as a server", client, "", x509.ExtKeyUsageServerAuth, now, false},
		{"the reaper as a step", reaper, "", x509.ExtKeyUsageClientAuth, now, false},
		{"the reaper as an agent", reaper, "", x509.ExtKeyUsageServerAuth, now, false},
		{"the reaper", reaper, "", x509.ExtKeyUsageAny, now, true},
		{"Prometheus as a step", metrics, "", x509.ExtKeyUsageClientAuth, now, false},
		{"Prometheus as an agent", metrics, "", x509.ExtKeyUsageServerAuth, now, false},
		{"Prometheus", metrics, "", x509.ExtKeyUsageAny, now, true},
		{"Prometheus after 366 days", metrics, "", x509.ExtKeyUsageAny, now.AddDate(0, 0, 366), false},
	}
	for _, test := range tests {
		_, err := test.cert.Verify(x509.VerifyOptions{
			Roots: roots, DNSName: test.name, KeyUsages: []x509.ExtKeyUsage{test.usage}, CurrentTime: test.at,
		})
		if (err == nil) != test.valid {
			t.Errorf("%s: valid %v, want %v: %v", test.what, err == nil, test.valid, err)
		}
	}
	for _, cert := range []*x509.Certificate{ca, server, client, metrics, reaper} {
		if key, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
			t.Errorf("%s: key %T, want ECDSA P-256", cert.Subject, cert.PublicKey)
		}
	}
	if server.IsCA || client.IsCA || metrics.IsCA || reaper.IsCA || !ca.IsCA {
		t.Error("want the CA to be the only CA")
	}
}

// Only the nodes of an environment that is not a run's training may train on each other.
func TestNodesThatTrain(t *testing.T) {
	for nodesTrain, want := range map[bool]agent.Peer{false: agent.AgentPeer, true: agent.LaunchPeer} {
		made, err := New("ns", "env", time.Now(), nodesTrain)
		if err != nil {
			t.Fatal(err)
		}
		for kind, pem := range map[agent.Peer][]byte{want: made.ServerCert, agent.StepPeer: made.ClientCert,
			agent.PrometheusPeer: made.MetricsCert, agent.ReaperPeer: made.ReaperCert} {
			state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate(t, pem)}}
			if got := agent.PeerOf(state); got != kind {
				t.Errorf("nodes train %t: got kind %d, want %d", nodesTrain, got, kind)
			}
		}
	}
}

func TestAnotherEnvironmentIsRefused(t *testing.T) {
	ours, err := New("ns", "ml-dev-env", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := New("ns", "ml-dev-env", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, ours, ours); err != nil {
		t.Errorf("our own step: %v", err)
	}
	if err := handshake(t, ours, theirs); err == nil {
		t.Error("a step with certificates of the same name from another CA was accepted")
	}
}

// handshake connects a step to an agent and returns the agent's error.
func handshake(t *testing.T, server, client objects.Certificates) error {
	t.Helper()
	load := func(cert, key, ca []byte) (tls.Certificate, *x509.CertPool) {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		return pair, roots
	}
	serverPair, clients := load(server.ServerCert, server.ServerKey, server.CA)
	clientPair, _ := load(client.ClientCert, client.ClientKey, client.CA)
	servers := x509.NewCertPool()
	servers.AppendCertsFromPEM(server.CA)
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		step := tls.Client(far, &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{clientPair}, RootCAs: servers, ServerName: "localhost",
		})
		_ = step.Handshake()
		// The agent decides about the certificate after the step's part of the handshake.
		_, _ = step.Read(make([]byte, 1))
		far.Close()
	}()
	agentSide := tls.Server(near, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{serverPair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	return agentSide.Handshake()
}

// A Secret holds 1 MiB. One certificate is valid for all nodes, so 512 nodes need no larger Secret than two.
func TestSecretsOfManyNodes(t *testing.T) {
	const path = "../../../clusters/h-kim.yaml"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := cluster.Load(path, content)
	if err != nil {
		t.Fatal(err)
	}
	made, err := New("ns", "env", time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	file.Nodes.GPUNodes = nil
	for i := range 512 {
		file.Nodes.GPUNodes = append(file.Nodes.GPUNodes, fmt.Sprintf("gpu-node-%03d", i))
	}
	built, err := objects.Build(objects.Request{Cluster: file, Name: "env", Namespace: "ns", Nodes: 512, Mode: agent.RDMA,
		Image: "registry.test/train:1", StepsImage: "registry.test/steps:1"}.WithDefaults(), objects.LeaseReference("env", "uid"), made)
	if err != nil || len(built.Secrets) != 2 {
		t.Fatalf("got %d Secrets, %v; want the agents' and the steps'", len(built.Secrets), err)
	}
	const sizeOfAnObject = 64 << 10
	for _, object := range built.InOrder() {
		text, err := json.Marshal(object)
		if err != nil || len(text) > sizeOfAnObject {
			t.Errorf("%T %s has %d bytes, %v; want at most %d", object, object.GetName(), len(text), err, sizeOfAnObject)
		}
	}
}
