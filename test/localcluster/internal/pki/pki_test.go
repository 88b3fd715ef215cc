// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

func TestCertificatesOfAReopenedAuthority(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "test"); err != nil {
		t.Fatal(err)
	}
	authority, err := Open(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	roots, err := cert.NewPool(authority.CertPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		request Request
		server  bool
	}{
		{Request{File: "server", User: "server", Hosts: []string{"10.0.0.1", "name.local"}}, true},
		{Request{File: "client", User: "client", Groups: []string{"system:masters"}}, false},
	} {
		pair, err := authority.Issue(test.request)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range append([]string{""}, test.request.Hosts...) {
			if _, err := loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("%s as a client, host %q: %v", test.request.File, host, err)
			}
		}
		_, err = loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if (err == nil) != test.server {
			t.Errorf("%s as a server: %v, want success %v", test.request.File, err, test.server)
		}
		if info, err := os.Stat(pair.Key); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key of %s: %v, %v; want mode 0600", test.request.File, info, err)
		}
	}
}

func TestServiceAccountKeyIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sa.key")
	for range 2 {
		if err := ServiceAccountKey(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := keyutil.PrivateKeyFromFile(path); err != nil {
		t.Error(err)
	}
	if keys, err := keyutil.PublicKeysFromFile(path); err != nil || len(keys) != 1 {
		t.Errorf("%d public keys, %v; want one", len(keys), err)
	}
}

// A second up writes the kubeconfig while other programs use the cluster.
func TestKubeconfigIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	authority, err := Open(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(Request{File: "client", User: "client"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	var files [2]os.FileInfo
	for i := range files {
		if err := authority.WriteKubeconfig(path, "https://10.0.0.1", pair); err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	if os.SameFile(files[0], files[1]) {
		t.Error("the second kubeconfig was written over the first one, want a file in its place: a reader would see a part of it")
	}
	if mode := files[1].Mode().Perm(); mode != 0o600 {
		t.Errorf("the kubeconfig has mode %o, want 600", mode)
	}
}
