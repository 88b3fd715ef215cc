package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// ServerTLS returns the configuration of an agent: it requires a certificate of the same CA, of the steps or of another agent. Go would
// verify client certificates alone, and agents of earlier releases do: an agent's certificate stays one of a server, which they refuse.
func (c Credentials) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		ClientCAs:    c.CA,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: c.CA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			})
			return err
		},
		NextProtos: []string{"h2", "http/1.1"},
	}
}

// FromStep reports whether the client of a verified connection is a step. Else it is another agent, which may only read trees.
func FromStep(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && slices.Contains(state.PeerCertificates[0].ExtKeyUsage,
		x509.ExtKeyUsageClientAuth)
}
