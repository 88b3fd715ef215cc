// Package pki creates the cluster's certificate authority, the certificates that it signs, and kubeconfigs with them.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity is that of every certificate. It is longer than a cluster exists, because a reboot ends it.
const validity = 5 * 365 * 24 * time.Hour

// Authority is a certificate authority in a folder: ca.crt and ca.key.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// Open loads the authority in dir, or creates it there.
func Open(dir, name string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir}
	certs, err := cert.CertsFromFile(a.CertPath())
	if errors.Is(err, fs.ErrNotExist) {
		return a, a.create(name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", a.CertPath(), err)
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("reading the key of the certificate authority in %s: a %T cannot sign", dir, key)
	}
	a.cert, a.key = certs[0], signer
	return a, nil
}

func (a *Authority) create(name string) (err error) {
	if a.key, err = newKey(filepath.Join(a.dir, "ca.key")); err != nil {
		return err
	}
	if a.cert, err = cert.NewSelfSignedCACert(cert.Config{CommonName: name}, a.key); err != nil {
		return err
	}
	return writeCert(a.CertPath(), a.cert.Raw)
}

// CertPath returns the file of the authority's certificate.
func (a *Authority) CertPath() string { return filepath.Join(a.dir, "ca.crt") }

// Pair has the files of a certificate and its key.
type Pair struct{ Cert, Key string }

// Request describes a certificate.
type Request struct {
	// File is the certificate's file name without .crt.
	File string
	// User and Groups are the subject's common name and organisations, which Kubernetes reads as a user and its groups.
	User   string
	Groups []string
	// Hosts are DNS names and addresses. A certificate without hosts is for clients only.
	Hosts []string
}

// Issue creates the certificate, or returns the one that was created before.
func (a *Authority) Issue(r Request) (Pair, error) {
	pair := Pair{Cert: filepath.Join(a.dir, r.File+".crt"), Key: filepath.Join(a.dir, r.File+".key")}
	if _, err := os.Stat(pair.Cert); err == nil {
		return pair, nil
	}
	key, err := newKey(pair.Key)
	if err != nil {
		return pair, err
	}
	template := template(r.User, r.Groups)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair, fmt.Errorf("signing %s: %w", r.File, err)
	}
	return pair, writeCert(pair.Cert, der)
}

func template(name string, groups []string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand does not fail on Linux
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
	}
}

// ServiceAccountKey creates the key that signs service account tokens, if it is missing.
func ServiceAccountKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(path, content)
}

func newKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return key, keyutil.WriteKey(path, content)
}

func writeCert(path string, der []byte) error {
	return cert.WriteCert(path, pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}))
}

// WriteKubeconfig writes a kubeconfig for the user of the pair. It embeds the
// certificates, so that the file can be copied alone.
func (a *Authority) WriteKubeconfig(path, server string, pair Pair) error {
	config := clientcmdapi.NewConfig()
	ca, err := os.ReadFile(a.CertPath())
	if err != nil {
		return err
	}
	certificate, err := os.ReadFile(pair.Cert)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(pair.Key)
	if err != nil {
		return err
	}
	const name = "localcluster"
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}
