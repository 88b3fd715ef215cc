// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
)

// Dialer connects to a node's agent, by the pod's address or through the API server.
type Dialer func(ctx context.Context, node int) (net.Conn, error)

// Credentials are one side of the mutual TLS.
type Credentials struct {
	Certificate tls.Certificate
	CA          *x509.CertPool
}

// ReadCredentials reads ca.crt, tls.crt and tls.key of a mounted client Secret.
// A folder without them is fs.ErrNotExist.
func ReadCredentials(dir string) (Credentials, error) {
	var files [3][]byte
	for i, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return Credentials{}, err
		}
	}
	return ParseCredentials(files[0], files[1], files[2])
}

// ParseCredentials reads credentials from PEM.
func ParseCredentials(ca, cert, key []byte) (Credentials, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return Credentials{}, errors.New("reading ca.crt: no certificate in it")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Credentials{}, fmt.Errorf("reading tls.crt and tls.key: %w", err)
	}
	return Credentials{Certificate: pair, CA: pool}, nil
}

// Peer is the kind of client that a certificate is for.
type Peer int

// The kinds. A certificate of the environment's CA is for one of them.
const (
	// UnknownPeer may do nothing.
	UnknownPeer Peer = iota
	// StepPeer is a step or mlenv, which may do everything.
	StepPeer
	// AgentPeer is another agent, which may only read trees.
	AgentPeer
	// LaunchPeer is an agent of an environment that a user keeps: what AgentPeer may, and trainings.
	LaunchPeer
	// PrometheusPeer may only read MetricsPath.
	PrometheusPeer
	// ReaperPeer may only read UsePath.
	ReaperPeer
)

// MetricsUsage returns the extended key usage of a certificate for Prometheus, which has no other one. The number is in the arc that RFC
// 5612 reserves for documentation, which nobody else gives a meaning.
func MetricsUsage() asn1.ObjectIdentifier {
	return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 32473, 7443, 1}
}

// ReaperUsage is MetricsUsage for the reaper, and for whatever else may only learn when an environment was used last.
func ReaperUsage() asn1.ObjectIdentifier {
	return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 32473, 7443, 2}
}

// LaunchUsage is MetricsUsage for an agent that may train on the other nodes, which has the usage of a server, too.
func LaunchUsage() asn1.ObjectIdentifier {
	return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 32473, 7443, 3}
}

func peerOf(certificate *x509.Certificate) Peer {
	switch {
	case slices.Contains(certificate.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return StepPeer
	case slices.Contains(certificate.ExtKeyUsage, x509.ExtKeyUsageServerAuth):
		if slices.ContainsFunc(certificate.UnknownExtKeyUsage, LaunchUsage().Equal) {
			return LaunchPeer
		}
		return AgentPeer
	case slices.ContainsFunc(certificate.UnknownExtKeyUsage, MetricsUsage().Equal):
		return PrometheusPeer
	case slices.ContainsFunc(certificate.UnknownExtKeyUsage, ReaperUsage().Equal):
		return ReaperPeer
	}
	return UnknownPeer
}

// PeerOf returns the kind of the client of a verified connection.
func PeerOf(state *tls.ConnectionState) Peer {
	if state == nil || len(state.PeerCertificates) == 0 {
		return UnknownPeer
	}
	return peerOf(state.PeerCertificates[0])
}

// ServerTLS returns the configuration of an agent: it requires a certificate of the same CA, for any kind of peer. Go would accept only
// certificates of clients, and an agent, which may read trees, has one of a server.
func (c Credentials) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		ClientCAs:    c.CA,
		VerifyConnection: func(state tls.ConnectionState) error {
			if PeerOf(&state) == UnknownPeer {
				return errors.New("verifying the client: its certificate is for no kind of client that the agent knows")
			}
			// PeerOf has looked at the usages; Go knows only its own.
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: c.CA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
		NextProtos: []string{"h2", "http/1.1"},
	}
}
