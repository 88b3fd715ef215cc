// SPDX-License-Identifier: Apache-2.0

// Package pki creates the cluster's certificate authority, the certificates that it signs, and kubeconfigs with them.
package pki

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/kubeconfig"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// validity is the lifetime of every certificate. It is longer than the lifetime of a cluster, which ends with the next
// reboot.
const validity = 5 * 365 * 24 * time.Hour

// Authority is a certificate authority in a folder: ca.crt and ca.key.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// authority is the name of the authority's files without .crt and .key.
const authority = "ca"

// Open loads the authority in dir, or creates it there.
func Open(dir, name string) (a *Authority, err error) {
	a = &Authority{dir: dir}
	if pkiutil.CertOrKeyExist(dir, authority) {
		a.cert, a.key, err = pkiutil.TryLoadCertAndKeyFromDisk(dir, authority)
		return a, err
	}
	if a.cert, a.key, err = pkiutil.NewCertificateAuthority(config(cert.Config{CommonName: name})); err != nil {
		return nil, err
	}
	return a, pkiutil.WriteCertAndKey(dir, authority, a.cert, a.key)
}

func config(c cert.Config) *pkiutil.CertConfig {
	return &pkiutil.CertConfig{Config: c, NotAfter: time.Now().Add(validity), EncryptionAlgorithm: kubeadm.EncryptionAlgorithmECDSAP256}
}

// CertPath returns the path of the authority's certificate.
func (a *Authority) CertPath() string { return filepath.Join(a.dir, authority+".crt") }

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

// Issue returns the certificate that exists, or creates it.
func (a *Authority) Issue(r Request) (Pair, error) {
	pair := Pair{Cert: filepath.Join(a.dir, r.File+".crt"), Key: filepath.Join(a.dir, r.File+".key")}
	if _, err := os.Stat(pair.Cert); err == nil {
		return pair, nil
	}
	subject := cert.Config{CommonName: r.User, Organization: r.Groups, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			subject.AltNames.IPs = append(subject.AltNames.IPs, ip)
		} else {
			subject.AltNames.DNSNames = append(subject.AltNames.DNSNames, host)
		}
	}
	if len(r.Hosts) > 0 {
		subject.Usages = append(subject.Usages, x509.ExtKeyUsageServerAuth)
	}
	certificate, key, err := pkiutil.NewCertAndKey(a.cert, a.key, config(subject))
	if err != nil {
		return pair, fmt.Errorf("signing %s: %w", r.File, err)
	}
	return pair, pkiutil.WriteCertAndKey(a.dir, r.File, certificate, key)
}

// ServiceAccountKey creates the key that signs service account tokens, if it is missing.
func ServiceAccountKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	key, err := pkiutil.GeneratePrivateKey(kubeadm.EncryptionAlgorithmRSA2048)
	if err != nil {
		return err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(path, content)
}

// WriteKubeconfig writes a kubeconfig for the user of the pair. It embeds the
// certificates, so that the file can be copied alone. A program that reads an existing one meanwhile finds it whole.
func (a *Authority) WriteKubeconfig(path, server string, pair Pair) error {
	var contents [3][]byte
	for i, file := range []string{a.CertPath(), pair.Key, pair.Cert} {
		var err error
		if contents[i], err = os.ReadFile(file); err != nil {
			return err
		}
	}
	const name = "localcluster"
	c := kubeconfig.CreateWithCerts(server, name, name, contents[0], contents[1], contents[2])
	c.Contexts[c.CurrentContext].Namespace = "default"
	if err := kubeconfig.WriteToDisk(path+".new", c); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
