// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
)

const token = "THE-RIGHT-TOKEN"

// behindGate starts program, and returns a gate in front of it.
func behindGate(t *testing.T, program http.HandlerFunc) *httptest.Server {
	t.Helper()
	back := httptest.NewServer(program)
	t.Cleanup(back.Close)
	service, _ := agent.FindService(agent.TensorBoard)
	front := httptest.NewServer(newGate(service, token, back.Listener.Addr().String(), "token inner").handler())
	t.Cleanup(front.Close)
	return front
}

func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s cookies %q authorization %q", r.Method, r.URL, r.Header.Get("Cookie"), r.Header.Get("Authorization"))
}

// browser returns a client that keeps cookies.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

// answer is a complete response.
type answer struct {
	*http.Response
	body string
}

func visit(t *testing.T, client *http.Client, address string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/html,*/*")
	return send(t, client, request)
}

func send(t *testing.T, client *http.Client, request *http.Request) answer {
	t.Helper()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response, string(body)}
}

func TestGateByTokenInTheAddress(t *testing.T) {
	front := behindGate(t, echo)
	client := browser(t)
	got := visit(t, client, front.URL+"/data?run=1")
	if got.StatusCode != http.StatusUnauthorized || !strings.Contains(got.body, `name="token"`) || strings.Contains(got.body, "GET /data") {
		t.Errorf("without a token: %s %q, want the login page", got.Status, got.body)
	}
	if got = visit(t, client, front.URL+"/?token=wrong"); got.StatusCode != http.StatusUnauthorized ||
		!strings.Contains(got.body, "not the right one") {
		t.Errorf("with a wrong token: %s %q", got.Status, got.body)
	}
	got = visit(t, client, front.URL+"/data?run=1&token="+token)
	if want := `GET /data?run=1 cookies "" authorization "token inner"`; got.StatusCode != http.StatusOK || got.body != want {
		t.Errorf("with the token: %s %q, want %q", got.Status, got.body, want)
	}
	if strings.Contains(got.Request.URL.String(), token) {
		t.Errorf("the token stays in the address %s", got.Request.URL)
	}
	where, _ := url.Parse(front.URL)
	client.Jar.SetCookies(where, []*http.Cookie{{Name: "theirs", Value: "1"}})
	if got = visit(t, client, front.URL+"/again"); got.body != `GET /again cookies "theirs=1" authorization "token inner"` {
		t.Errorf("by the cookie: %q, want their cookie only", got.body)
	}
}

// A browser sends the cookies of a host to all of its ports, so the sessions of other services and environments come along.
func TestGatePassesNoSession(t *testing.T) {
	front := behindGate(t, func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "mlenv-jupyter", Value: "forged"})
		http.SetCookie(w, &http.Cookie{Name: "theirs", Value: "2"})
		echo(w, r)
	})
	client := browser(t)
	visit(t, client, front.URL+"/?token="+token)
	where, _ := url.Parse(front.URL)
	client.Jar.SetCookies(where, []*http.Cookie{{Name: "mlenv-jupyter", Value: "session"}, {Name: "mlenv-x", Value: "1"},
		{Name: "theirs", Value: "1"}})
	got := visit(t, client, front.URL+"/x")
	if got.body != `GET /x cookies "theirs=1" authorization "token inner"` {
		t.Errorf("the program gets %q, want their cookie only", got.body)
	}
	if set := got.Cookies(); len(set) != 1 || set[0].Name != "theirs" {
		t.Errorf("the program sets %v, want their cookie only", set)
	}
	// Another page has set one of the same name.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/y", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Cookie", "mlenv-tensorboard=forged")
	if got := send(t, client, request); got.StatusCode != http.StatusOK {
		t.Errorf("with a forged session before the right one: %s", got.Status)
	}
}

func TestGateCookie(t *testing.T) {
	front := behindGate(t, echo)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, proto := range []string{"http", "https"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"//elsewhere.example.com/%2e?token="+token, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "text/html")
		request.Header.Set("X-Forwarded-Proto", proto)
		response := send(t, client, request)
		cookies := response.Cookies()
		if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteLaxMode || cookies[0].Secure != (proto == "https") ||
			strings.Contains(cookies[0].Value, token) {
			t.Errorf("%s: cookies %v", proto, cookies)
		}
		if to := response.Header.Get("Location"); strings.HasPrefix(to, "//") || !strings.HasPrefix(to, "/") {
			t.Errorf("%s: redirected to %q, want a path of this host", proto, to)
		}
	}
}

func TestGateByForm(t *testing.T) {
	front := behindGate(t, echo)
	client := browser(t)
	for given, want := range map[string]int{"wrong": http.StatusUnauthorized, "": http.StatusUnauthorized, " " + token + "\n": http.StatusOK} {
		response, err := client.PostForm(front.URL+loginPath, url.Values{"token": {given}})
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("form with %q: %s, want %d", given, response.Status, want)
		}
	}
	if got := visit(t, client, front.URL+"/x"); !strings.HasPrefix(got.body, "GET /x ") {
		t.Errorf("after the form: %q", got.body)
	}
}

func TestGateForPrograms(t *testing.T) {
	front := behindGate(t, echo)
	for _, tc := range []struct {
		name, method, path string
		header             map[string]string
		want               int
	}{
		{"nothing", "GET", "/api", nil, 401},
		{"bearer", "POST", "/api", map[string]string{"Authorization": "Bearer " + token}, 200},
		{"as Jupyter's clients", "GET", "/api", map[string]string{"Authorization": "token " + token}, 200},
		{"wrong", "GET", "/api", map[string]string{"Authorization": "Bearer " + token + "x"}, 401},
		{"basic", "GET", "/api", map[string]string{"Authorization": "Basic " + token}, 401},
		{"in the address", "GET", "/api?token=" + token, nil, 200},
		{"a made-up cookie", "GET", "/api", map[string]string{"Cookie": "mlenv-tensorboard=" + token}, 401},
		{"another site writes", "POST", "/api?token=" + token, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"another site logs in", "POST", loginPath, map[string]string{"Origin": "https://elsewhere.example.com"}, 403},
		{"another site's socket", "GET", "/api?token=" + token, map[string]string{"Origin": "https://elsewhere.example.com",
			"Upgrade": "websocket", "Connection": "Upgrade"}, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), tc.method, front.URL+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for key, value := range tc.header {
				request.Header.Set(key, value)
			}
			got := send(t, http.DefaultClient, request)
			if got.StatusCode != tc.want || strings.Contains(got.body, token) {
				t.Errorf("%s %q, want %d", got.Status, got.body, tc.want)
			}
		})
	}
}

// The client receives a stream while the answer continues, and upgraded connections pass data both ways.
func TestGateStreams(t *testing.T) {
	goOn := make(chan struct{})
	front := behindGate(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprintln(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-goOn
			fmt.Fprintln(w, "second")
			return
		}
		w.Header().Set("Upgrade", "lines")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, _ := buffered.ReadString('\n')
		fmt.Fprintf(conn, "heard %s", line)
	})
	response, err := http.Get(front.URL + "/?token=" + token)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" {
		t.Errorf("while it continues: %q, %v", line, err)
	}
	close(goOn)
	if line, err := lines.ReadString('\n'); line != "second\n" {
		t.Errorf("then: %q, %v", line, err)
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(front.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /?token=%s HTTP/1.1\r\nHost: here\r\nOrigin: http://here\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n", token)
	upgraded := bufio.NewReader(conn)
	if status, err := upgraded.ReadString('\n'); !strings.Contains(status, "101") {
		t.Fatalf("upgrade: %q, %v", status, err)
	}
	for line := ""; line != "\r\n"; {
		if line, err = upgraded.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(conn, "hello")
	if line, err := upgraded.ReadString('\n'); line != "heard hello\n" {
		t.Errorf("through the upgraded connection: %q, %v", line, err)
	}
}

func TestGateBeforeItsProgramAnswers(t *testing.T) {
	front := behindGate(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	got := visit(t, browser(t), front.URL+"/?token="+token)
	if got.StatusCode != http.StatusBadGateway || !strings.Contains(got.body, "tensorboard does not answer yet") {
		t.Errorf("%s %q", got.Status, got.body)
	}
}

// Connections without the token do not accumulate. Those with the token stay open, however many others arrive.
func TestGateLimitsStrangers(t *testing.T) {
	back := httptest.NewServer(http.HandlerFunc(echo))
	defer back.Close()
	service, _ := agent.FindService(agent.TensorBoard)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := newGate(service, token, back.Listener.Addr().String(), "").server(nil)
	defer front.Close()
	go func() { _ = front.Serve(connlimit.New(listener, connlimit.Unproven)) }()
	if front.IdleTimeout == 0 || front.ReadHeaderTimeout == 0 {
		t.Error("a connection may be silent for ever")
	}
	ask := func(authorization string) (net.Conn, func() error) {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(conn)
		return conn, func() error {
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n\r\n", authorization)
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			return errors.Join(err, response.Body.Close())
		}
	}
	known, again := ask("Bearer " + token)
	defer known.Close()
	stranger, still := ask("Bearer wrong")
	defer stranger.Close()
	if err := errors.Join(again(), still()); err != nil {
		t.Fatal(err)
	}
	for range connlimit.Unproven {
		conn, request := ask("")
		defer conn.Close()
		if err := request(); err != nil {
			t.Fatal(err)
		}
	}
	if err := again(); err != nil {
		t.Errorf("a connection that had the token: %v", err)
	}
	if err := still(); err == nil {
		t.Error("the oldest connection without the token is open")
	}
}
