// Package pki makes the cluster's certificate authority, the certificates it
// signs and the kubeconfigs that carry them.
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
)

// validity of every certificate: longer than a cluster that any reboot ends.
const validity = 5 * 365 * 24 * time.Hour

// Authority is a certificate authority in a folder: ca.crt and ca.key.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// Open loads the authority in dir, or makes one there.
func Open(dir, name string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir}
	certPEM, err := os.ReadFile(a.CertPath())
	if errors.Is(err, fs.ErrNotExist) {
		return a, a.create(name)
	}
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("reading the certificate authority in %s: not PEM", dir)
	}
	if a.cert, err = x509.ParseCertificate(certBlock.Bytes); err != nil {
		return nil, fmt.Errorf("reading %s: %w", a.CertPath(), err)
	}
	a.key, err = x509.ParseECPrivateKey(keyBlock.Bytes)
	return a, err
}

func (a *Authority) create(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := template(name, nil)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	a.key = key
	if err := writeKey(filepath.Join(a.dir, "ca.key"), key); err != nil {
		return err
	}
	return writePEM(a.CertPath(), "CERTIFICATE", der, 0o644)
}

// CertPath is the authority's certificate.
func (a *Authority) CertPath() string { return filepath.Join(a.dir, "ca.crt") }

// Pair is the files of a certificate and its key.
type Pair struct{ Cert, Key string }

// Request says what a certificate is for.
type Request struct {
	// File is the certificate's file name without .crt.
	File string
	// User and Groups are the subject's common name and organisations, which
	// Kubernetes reads as a user and its groups.
	User   string
	Groups []string
	// Hosts are DNS names and addresses; a certificate with none is a client's alone.
	Hosts []string
}

// Issue makes the certificate, or returns the one that was made before.
func (a *Authority) Issue(r Request) (Pair, error) {
	pair := Pair{Cert: filepath.Join(a.dir, r.File+".crt"), Key: filepath.Join(a.dir, r.File+".key")}
	if _, err := os.Stat(pair.Cert); err == nil {
		return pair, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
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
	if err := writeKey(pair.Key, key); err != nil {
		return pair, err
	}
	return pair, writePEM(pair.Cert, "CERTIFICATE", der, 0o644)
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

// ServiceAccountKey makes the key that signs service account tokens, if it is missing.
func ServiceAccountKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writePEM(path, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), 0o600)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// WriteKubeconfig writes a kubeconfig for the user of the pair. It embeds the
// certificates, so that the file can be copied alone.
func (a *Authority) WriteKubeconfig(path, server string, pair Pair) error {
	config := clientcmdapi.NewConfig()
	ca, err := os.ReadFile(a.CertPath())
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(pair.Cert)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(pair.Key)
	if err != nil {
		return err
	}
	const name = "localcluster"
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}
