package git

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// newHTTPClient makes a client that sends credentials to their own host alone,
// wherever it is redirected to. Proxies are taken from the environment.
func newHTTPClient(keys keyring) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: keys.auth.roots, MinVersion: tls.VersionTLS12}
	transport.ResponseHeaderTimeout = maxSilence
	transport.TLSHandshakeTimeout = 30 * time.Second
	return &http.Client{
		Transport: &authenticating{next: transport, keys: keys},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 5 {
				return errors.New("redirected more than 5 times")
			}
			if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return fmt.Errorf("redirected to %s without TLS: want https", req.URL.Host)
			}
			return nil
		},
	}
}

type authenticating struct {
	next http.RoundTripper
	keys keyring
}

// RoundTrip is asked for each hop of a redirect.
func (a *authenticating) RoundTrip(r *http.Request) (*http.Response, error) {
	user, password, ok := a.keys.basic(r.URL.Scheme, r.URL.Hostname(), r.URL.Port())
	if ok && r.Header.Get("Authorization") == "" && r.Context().Value(signed{}) == nil {
		r = r.Clone(r.Context())
		r.SetBasicAuth(user, password)
	}
	return a.next.RoundTrip(r)
}

// signed is the context key of requests whose URL has all the right they need.
type signed struct{}

// statusError is an HTTP answer that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("the server answers %d %s", e.code, http.StatusText(e.code))
	if e.text != "" {
		text += ": " + e.text
	}
	return text
}

// do sends a request. Its errors show no URL, as that may be a signed one.
func do(client *http.Client, r *http.Request) (*http.Response, error) {
	r.Header.Set("User-Agent", agentName)
	answer, err := client.Do(r)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		return nil, wrapped.Err
	}
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	failed := &statusError{code: answer.StatusCode}
	if kind := answer.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/plain") || strings.HasSuffix(kind, "json") {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)) // what is there is shown
		failed.text = printable(string(text))
	}
	return nil, failed
}

// httpLink is a conversation over HTTP: each message is a request of its own.
type httpLink struct {
	ctx      context.Context
	patience *patience
	client   *http.Client
	url      *url.URL
	body     io.Closer
}

func (l *httpLink) open() (*lineReader, error) {
	return l.ask(http.MethodGet, "info/refs", "application/x-git-upload-pack-advertisement", nil)
}

func (l *httpLink) send(message []byte) (*lineReader, error) {
	return l.ask(http.MethodPost, "git-upload-pack", "application/x-git-upload-pack-result", message)
}

func (l *httpLink) ask(method, service, kind string, message []byte) (*lineReader, error) {
	l.close()
	u := l.url.JoinPath(service)
	if message == nil {
		u.RawQuery = "service=git-upload-pack"
	}
	r, err := http.NewRequestWithContext(l.ctx, method, u.String(), bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Git-Protocol", "version=2")
	if message != nil {
		r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	}
	answer, err := do(l.client, r) //nolint:bodyclose // close does it
	if err != nil {
		return nil, err
	}
	l.body = answer.Body
	if seen := answer.Header.Get("Content-Type"); seen != kind {
		l.close()
		return nil, fmt.Errorf("the server answers with %s: want %s; no git repository is served there", printable(seen), kind)
	}
	// What moved has moved for the rest of the conversation too.
	if moved := answer.Request.URL; strings.HasSuffix(moved.Path, "/"+service) {
		base := *moved
		base.Path, base.RawPath, base.RawQuery = strings.TrimSuffix(moved.Path, "/"+service), "", ""
		l.url = &base
	}
	return newLineReader(l.patience.reader(answer.Body)), nil
}

func (l *httpLink) close() {
	if l.body != nil {
		l.body.Close()
		l.body = nil
	}
}
