// Package certs makes the certificates by which the steps and the agents of one
// environment know each other.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// Lifetime of all three certificates. An environment lives for days; one that is
// kept for a year must be provisioned anew.
const Lifetime = 365 * 24 * time.Hour

// skew is how far behind ours the clocks of the nodes may be.
const skew = time.Hour

// New makes a CA, and by it a certificate for the agents of all nodes of
// environment name and one for the steps. The CA's key is not kept: nobody can
// ever sign another. An agent's certificate is no client's and the other way
// round, so a node that was broken into cannot command the others.
func New(namespace, name string, now time.Time) (objects.Certificates, error) {
	none := objects.Certificates{}
	ca, err := newAuthority(name, now)
	if err != nil {
		return none, fmt.Errorf("making the CA of environment %s/%s: %w", namespace, name, err)
	}
	nodes := "*." + objects.NamesOf(name).Suffix(namespace)
	result := objects.Certificates{CA: encode("CERTIFICATE", ca.certificate.Raw)}
	result.ServerCert, result.ServerKey, err = ca.issue(&x509.Certificate{
		Subject:     subject(name, "agent"),
		DNSNames:    []string{nodes, nodes + ".cluster.local", "localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return none, fmt.Errorf("making the agents' certificate of environment %s/%s: %w", namespace, name, err)
	}
	result.ClientCert, result.ClientKey, err = ca.issue(&x509.Certificate{
		Subject:     subject(name, "steps"),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return none, fmt.Errorf("making the steps' certificate of environment %s/%s: %w", namespace, name, err)
	}
	return result, nil
}

func subject(name, role string) pkix.Name {
	return pkix.Name{Organization: []string{"ml-dev-env"}, CommonName: name + " " + role}
}

// authority is a CA that lives in memory only.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	from, until time.Time
}

func newAuthority(name string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &authority{key: key, from: now.Add(-skew), until: now.Add(Lifetime)}
	template := &x509.Certificate{
		Subject:               subject(name, "CA"),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	// It signs itself.
	ca.certificate = template
	der, err := ca.sign(template, key)
	if err != nil {
		return nil, err
	}
	ca.certificate, err = x509.ParseCertificate(der)
	return ca, err
}

// issue completes and signs the template for a new key; both are returned in PEM.
func (ca *authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := ca.sign(template, key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER), nil
}

func (ca *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, ca.from, ca.until
	return x509.CreateCertificate(rand.Reader, template, ca.certificate, &key.PublicKey, ca.key)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
