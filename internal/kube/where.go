// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// ErrClusterUnknown means that CheckCluster could not find out which cluster this is. It is a warning, not a failure.
var ErrClusterUnknown = errors.New("the cluster cannot be identified")

// CheckCluster compares cluster.api of a cluster file with config's cluster, without any permission. It is the same cluster
// if the kubeconfig names the host, or if the API server shows a certificate for the file's host as TLS server name; the
// file may omit "api.". Requests verify the certificate themselves. Errors: WrongCluster with both names; ErrClusterUnknown
// behind a proxy, without TLS, or if the network fails.
func CheckCluster(ctx context.Context, config *rest.Config, api string) error {
	wanted := hostOf(api)
	names := []string{wanted}
	if net.ParseIP(wanted) == nil && !strings.HasPrefix(wanted, "api.") {
		names = append(names, "api."+wanted)
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return unknown("reading the API server's address %q: %w", config.Host, err)
	}
	if slices.Contains(names, strings.ToLower(server.Hostname())) {
		return nil
	}
	if server.Scheme != "https" {
		return unknown("API server %s has no certificate", server)
	}
	if proxied(config, server) {
		return unknown("API server %s is behind a proxy", server.Host)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var seen *x509.Certificate
	for _, name := range names {
		if seen, err = certificate(ctx, config, server, name); err != nil {
			return unknown("reading the certificate of API server %s: %w", server.Host, err)
		}
		for _, name := range names {
			if seen.VerifyHostname(name) == nil {
				return nil
			}
		}
	}
	return fail.Advise(fail.Becausef(fail.WrongCluster, "comparing cluster.api of the cluster file with API server %s: its certificate is "+
		"for %s: want %s",
		server.Host, shortened(seen), wanted),
		"choose the cluster file of this cluster, or correct its cluster.api: oc whoami --show-server")
}

// CheckCluster is the function of that name for steps: an unknown cluster is a warning in their log.
func (c *Clients) CheckCluster(ctx context.Context, api string, log *slog.Logger) error {
	err := CheckCluster(ctx, c.Config, api)
	if errors.Is(err, ErrClusterUnknown) {
		log.Warn(fmt.Sprintf("Whether this is the cluster of the cluster file is not known: %v", err))
		return nil
	}
	return err
}

func unknown(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrClusterUnknown, fmt.Errorf(format, args...))
}

func hostOf(api string) string {
	if _, rest, isURL := strings.Cut(api, "://"); isURL {
		api = rest
	}
	api, _, _ = strings.Cut(api, "/")
	if host, _, err := net.SplitHostPort(api); err == nil {
		api = host
	}
	return strings.ToLower(strings.Trim(strings.TrimSuffix(api, "."), "[]"))
}

func proxied(config *rest.Config, server *url.URL) bool {
	proxy := http.ProxyFromEnvironment
	if config.Proxy != nil {
		proxy = config.Proxy
	}
	through, err := proxy(&http.Request{URL: server})
	return err != nil || through != nil
}

func certificate(ctx context.Context, config *rest.Config, server *url.URL, name string) (*x509.Certificate, error) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), "443")))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// Nothing is sent over this connection. It must also read another cluster's certificate, which the CA cannot verify.
	secure := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure.ConnectionState().PeerCertificates[0], nil
}

// shortened lists a certificate's names: the specific ones first, then the names that every cluster's API server has.
func shortened(certificate *x509.Certificate) string {
	var telling, common []string
	for _, name := range certificate.DNSNames {
		first, _, _ := strings.Cut(name, ".")
		if first == "kubernetes" || first == "openshift" || first == "localhost" {
			common = append(common, name)
		} else {
			telling = append(telling, name)
		}
	}
	for _, address := range certificate.IPAddresses {
		common = append(common, address.String())
	}
	return cmp.Or(humanize.First(slices.Concat(telling, common), 3), "no name")
}
