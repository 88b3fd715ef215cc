// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

func certificateFor(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// apiServerOf answers as OpenShift's API server does: with the certificate of its external name if the client asks for
// that name, otherwise with the certificate of the service network.
func apiServerOf(t *testing.T, outer ...string) string {
	t.Helper()
	inner := certificateFor(t, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "openshift", "172.30.0.1", "10.223.0.2")
	outside := certificateFor(t, outer...)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{inner},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if slices.Contains(outer, hello.ServerName) {
				return &outside, nil
			}
			return &inner, nil
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestCheckCluster(t *testing.T) {
	const cairo = "api.cairo.test.nerc.mghpcc.org"
	for _, tc := range []struct {
		name string
		host string
		api  string
		want string // "" for the same cluster
	}{
		{"its own name", apiServerOf(t, cairo), cairo, ""},
		{"with port and scheme", apiServerOf(t, cairo), "https://" + cairo + ":6443", ""},
		{"api left out", apiServerOf(t, "api.barcelona.nerc.mghpcc.org"), "barcelona.nerc.mghpcc.org", ""},
		{"by address", apiServerOf(t, cairo), "10.223.0.2:6443", ""},
		{"the kubeconfig says so", "https://" + cairo + ":6443", cairo, ""},
		{"the kubeconfig says so, with api in front", "https://api.barcelona.nerc.mghpcc.org:6443", "barcelona.nerc.mghpcc.org", ""},
		{"another cluster", apiServerOf(t, "api.barcelona.nerc.mghpcc.org"), cairo,
			"its certificate is for kubernetes, kubernetes.default, kubernetes.default.svc and 3 more: want " + cairo},
		{"another address", apiServerOf(t, cairo), "10.0.0.9", "want 10.0.0.9"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := CheckCluster(t.Context(), &rest.Config{Host: tc.host}, tc.api)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (fail.ReasonOf(err) != fail.WrongCluster || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want WrongCluster with %q", err, tc.want)
			}
		})
	}
}

func TestCheckClusterUnknown(t *testing.T) {
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	closed.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	proxy := func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy.example.org") }
	for name, config := range map[string]*rest.Config{
		"without TLS":  {Host: "http://127.0.0.1:8001"},
		"proxy":        {Host: apiServerOf(t, "api.example.org"), Proxy: proxy},
		"no answer":    {Host: closed.URL},
		"not an https": {Host: strings.Replace(plain.URL, "http:", "https:", 1)},
	} {
		if err := CheckCluster(t.Context(), config, "api.example.org"); !errors.Is(err, ErrClusterUnknown) {
			t.Errorf("%s: got %v, want ErrClusterUnknown", name, err)
		}
	}
}
