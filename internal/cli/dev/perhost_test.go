// SPDX-License-Identifier: Apache-2.0

package dev

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// environment is a service behind mlenv open. It notes the cookies that it gets, as hostile code in an environment would.
type environment struct {
	host string
	port int
	seen []string
}

func open(t *testing.T, name string) *environment {
	t.Helper()
	e := &environment{host: env.Of(&kube.Clients{Namespace: "team"}, name).LocalHost("https://api.example.com:6443")}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.seen = append(e.seen, r.Header.Get("Cookie"))
		http.SetCookie(w, &http.Cookie{Name: "mlenv-jupyter", Value: "session-of-" + name, Path: "/"})
		if upgrade := r.Header.Get("Upgrade"); upgrade != "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", upgrade)
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		fmt.Fprintf(w, "%s %s at %s", name, r.URL, r.Host)
	}))
	t.Cleanup(service.Close)
	ctx, cancel := context.WithCancel(t.Context())
	port, wait, err := serveOnLoopback(ctx, 0, newPerHost(slog.New(slog.DiscardHandler), e.host, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", service.Listener.Addr().String())
	}))
	if err != nil {
		t.Fatal(err)
	}
	e.port = port
	t.Cleanup(func() { cancel(); wait() })
	return e
}

// newBrowser connects names below localhost to this machine, as browsers do, and keeps cookies.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar,
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
		}}}
}

func get(t *testing.T, client *http.Client, address, accept string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// A session of one environment does not reach the code of another one, under whatever name the user opens them.
func TestSessionsStayWithTheirEnvironment(t *testing.T) {
	a, b := open(t, "a"), open(t, "b")
	client := newBrowser(t)
	for range 2 {
		for _, e := range []*environment{a, b} {
			for _, host := range []string{"localhost", "127.0.0.1", e.host} {
				response, body := get(t, client, fmt.Sprintf("http://%s:%d/lab?x=1", host, e.port), "text/html") //nolint:bodyclose // get has closed it
				if want := fmt.Sprintf("/lab?x=1 at %s:%d", e.host, e.port); response.StatusCode != http.StatusOK || !strings.HasSuffix(body, want) {
					t.Errorf("%s: %s %q, want %q", host, response.Status, body, want)
				}
			}
		}
	}
	for name, e := range map[string]*environment{"a": a, "b": b} {
		if len(e.seen) == 0 {
			t.Error("no request came")
		}
		for _, cookies := range e.seen[1:] {
			if cookies != "mlenv-jupyter=session-of-"+name {
				t.Errorf("environment %s gets %q, want its own session", name, cookies)
			}
		}
	}
}

func TestPerHostForPrograms(t *testing.T) {
	e := open(t, "a")
	client := newBrowser(t)
	api := fmt.Sprintf("http://localhost:%d/api", e.port)
	response, body := get(t, client, api, "application/json") //nolint:bodyclose // get has closed it
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(body, "a /api") || len(response.Cookies()) > 0 {
		t.Errorf("got %s %q, cookies %v; want the answer without cookies", response.Status, body, response.Cookies())
	}
	upgrade, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api, nil)
	if err != nil {
		t.Fatal(err)
	}
	upgrade.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	if response, err = client.Do(upgrade); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols || len(response.Cookies()) > 0 {
		t.Errorf("an upgrade gets %s, cookies %v; want none", response.Status, response.Cookies())
	}
	elsewhere := fmt.Sprintf("http://elsewhere.example.com:%d/", e.port)
	response, body = get(t, client, elsewhere, "text/html") //nolint:bodyclose // get has closed it
	if response.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("after DNS rebinding: %s %q", response.Status, body)
	}
}
