// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// perHost forwards HTTP to one environment's service under a host name of its own. A browser sends the cookies of a host to all of its
// ports: under localhost, a session of one environment would reach the services of all others, and thus the code that runs there.
type perHost struct {
	host string
	// proxy passes everything on, cookieless all but the cookies of answers.
	proxy, cookieless http.Handler
}

func newPerHost(log *slog.Logger, host string, dial dialer) perHost {
	const idle = 16
	proxy := httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// The service compares its own name, which stays, with the page's origin.
			r.Out.URL.Scheme, r.Out.URL.Host = "http", r.In.Host
		},
		// Streams are not buffered.
		FlushInterval: -1,
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(context.WithoutCancel(ctx)) },
			MaxIdleConnsPerHost: idle, DisableCompression: true,
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				log.Warn(fmt.Sprintf("A request was not forwarded: %v", err))
			}
			http.Error(w, "the request was not forwarded: "+err.Error(), http.StatusBadGateway)
		},
	}
	cookieless := proxy
	cookieless.ModifyResponse = func(r *http.Response) error {
		r.Header.Del("Set-Cookie")
		return nil
	}
	return perHost{host: host, proxy: &proxy, cookieless: &cookieless}
}

// ServeHTTP sends browsers from other names of this machine to the environment's own. Programs may use any of them: they have no cookies,
// and get none.
func (p perHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	switch ip := net.ParseIP(host); {
	case strings.EqualFold(host, p.host):
		p.proxy.ServeHTTP(w, r)
	case !strings.EqualFold(host, "localhost") && !ip.IsLoopback():
		http.Error(w, "this port serves "+p.host, http.StatusMisdirectedRequest)
	case r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html"):
		to := url.URL{Scheme: "http", Host: strings.TrimSuffix(p.host+":"+port, ":"), Path: r.URL.Path, RawPath: r.URL.RawPath,
			RawQuery: r.URL.RawQuery}
		http.Redirect(w, r, to.String(), http.StatusTemporaryRedirect)
	default:
		r.Header.Del("Cookie")
		p.cookieless.ServeHTTP(w, r)
	}
}

// serveOnLoopback serves the handler on this machine's loopback until ctx ends, on the preferred port or another one if that is taken. wait
// returns when the server has ended.
func serveOnLoopback(ctx context.Context, preferred int, handler http.Handler) (port int, wait func(), err error) {
	listener, err := listen(preferred)
	if err != nil {
		return 0, nil, err
	}
	const patience = 30 * time.Second // for a browser's headers
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = server.Serve(listener) // ends when it is closed
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port, func() { <-over }, nil
}
