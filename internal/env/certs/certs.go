// SPDX-License-Identifier: Apache-2.0

// Package certs creates the certificates by which the steps and the agents of one environment trust each other.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
)

// Lifetime is how long all certificates are valid. An environment that is kept for longer must be provisioned again.
const Lifetime = 365 * 24 * time.Hour

// New creates a CA, a certificate for the agents of all nodes of environment name, one for the steps, one for Prometheus, which
// may only read metrics, and one for the reaper, which may only read when the environment was used last. It discards the CA's key, so that
// no other certificate can be signed. An agent's certificate is not valid for a client, nor a client's for an agent: a compromised node
// cannot command the others. With its own an agent may only read trees of the others, and train on them if nodesTrain is true. Agents
// without DNS names have addresses.
func New(namespace, name string, now time.Time, nodesTrain bool, addresses ...net.IP) (result objects.Certificates, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("creating the certificates of environment %s/%s: %w", namespace, name, err)
		}
	}()
	ca := authority{from: now.Add(-time.Hour), until: now.Add(Lifetime)} // the nodes' clocks may be behind
	ca.certificate = &x509.Certificate{
		Subject: subject(name, "CA"), IsCA: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if ca.key, err = newKey(); err != nil {
		return result, err
	}
	der, err := ca.sign(ca.certificate, ca.key)
	if err != nil {
		return result, err
	}
	if ca.certificate, err = x509.ParseCertificate(der); err != nil {
		return result, err
	}
	var usages []asn1.ObjectIdentifier
	if nodesTrain {
		usages = append(usages, agent.LaunchUsage())
	}
	nodes := "*." + names.Of(namespace, name).Suffix()
	result.CA = encode("CERTIFICATE", der)
	result.ServerCert, result.ServerKey, err = ca.issue(&x509.Certificate{
		Subject:     subject(name, "agent"),
		DNSNames:    []string{nodes, nodes + ".cluster.local", "localhost"},
		IPAddresses: addresses,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, UnknownExtKeyUsage: usages,
	})
	if err != nil {
		return result, err
	}
	result.ClientCert, result.ClientKey, err = ca.issue(&x509.Certificate{
		Subject:     subject(name, "steps"),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return result, err
	}
	result.MetricsCert, result.MetricsKey, err = ca.issue(&x509.Certificate{
		Subject:            subject(name, "metrics"),
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{agent.MetricsUsage()},
	})
	if err != nil {
		return result, err
	}
	result.ReaperCert, result.ReaperKey, err = ca.issue(&x509.Certificate{
		Subject:            subject(name, "reaper"),
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{agent.ReaperUsage()},
	})
	return result, err
}

func subject(name, role string) pkix.Name {
	return pkix.Name{Organization: []string{"ml-dev-env"}, CommonName: name + " " + role}
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	from, until time.Time
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// issue completes and signs the template for a new key, and returns both in PEM.
func (ca authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
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

// sign leaves the serial number to CreateCertificate, which makes a random one.
func (ca authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	template.BasicConstraintsValid, template.NotBefore, template.NotAfter = true, ca.from, ca.until
	return x509.CreateCertificate(rand.Reader, template, ca.certificate, &key.PublicKey, ca.key)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
