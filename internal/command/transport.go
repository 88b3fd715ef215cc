// SPDX-License-Identifier: Apache-2.0

package command

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
)

// Transport is for requests to servers outside the cluster. It uses the proxies of the environment, and trusts the bundles
// that exist in addition to the machine's certificates.
func Transport(bundles ...string) *http.Transport {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	for _, file := range bundles {
		if content, err := os.ReadFile(file); err == nil {
			roots.AppendCertsFromPEM(content)
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return transport
}
