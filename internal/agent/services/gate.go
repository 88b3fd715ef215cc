// SPDX-License-Identifier: Apache-2.0

package services

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"html/template"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/connlimit"
)

// loginPath receives the form of the login page.
const loginPath = "/.mlenv/login"

// gate is a reverse proxy that requires the service's token: once in the URL or in the form, which set a cookie, or in the
// header Authorization.
type gate struct {
	service agent.Service
	token   string
	proxy   *httputil.ReverseProxy
	// used is called for each request that the program gets, and while a WebSocket sends.
	used func()
}

// newGate returns the gate of a program's address. A program that requires the authorization itself gets it.
func newGate(service agent.Service, token, address, authorization string) *gate {
	g := &gate{service: service, token: token, used: func() {}}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", address
			r.SetXForwarded()
			g.withoutOurs(r.Out)
			if authorization != "" {
				r.Out.Header.Set("Authorization", authorization)
			}
		},
		// A program sets no session of a gate.
		ModifyResponse: func(r *http.Response) error {
			r.Header["Set-Cookie"] = slices.DeleteFunc(r.Header["Set-Cookie"], func(line string) bool {
				return strings.HasPrefix(strings.TrimSpace(line), cookiePrefix)
			})
			return nil
		},
		// Streams are not buffered.
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, service.Name+" does not answer yet, or does not run. Its log is on the node.", http.StatusBadGateway)
		},
	}
	return g
}

// server serves the gate on a listener of connlimit. Answers may last as long as they like, so only requests have bounds.
func (g *gate) server(log *log.Logger) *http.Server {
	return &http.Server{Handler: g.handler(), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ConnContext: connlimit.WithConn, ErrorLog: log}
}

// handler also refuses requests of other sites' pages, because the browser may send the cookie with them.
func (g *gate) handler() http.Handler {
	// A ServeMux would clean the program's paths.
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == loginPath {
			g.login(w, r)
			return
		}
		g.pass(w, r)
	}))
}

func (g *gate) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(10 * time.Second)) // connections of tests have none
	if !same(strings.TrimSpace(r.PostFormValue("token")), g.token) {
		g.refuse(w, r, "That is not the token.")
		return
	}
	g.redirectWithCookie(w, r, "/")
}

func (g *gate) pass(w http.ResponseWriter, r *http.Request) {
	given := r.URL.Query().Get("token")
	switch right := same(given, g.token); {
	case right && isPage(r):
		g.redirectWithCookie(w, r, withoutToken(r.URL))
		return
	case right, g.hasCookie(r), g.hasHeader(r):
	case given != "":
		g.refuse(w, r, "The token in the address is not the right one.")
		return
	default:
		g.refuse(w, r, "")
		return
	}
	if r.Header.Get("Upgrade") != "" && !sameSite(r) {
		http.Error(w, "a page of another site asks for this", http.StatusForbidden)
		return
	}
	connlimit.ProveRequest(r)
	g.used()
	g.proxy.ServeHTTP(&noting{w, g.used}, r)
	g.used() // an answer may have taken long
}

// redirectWithCookie sets the cookie and redirects to an address without the token, which stays out of the browser's history.
func (g *gate) redirectWithCookie(w http.ResponseWriter, r *http.Request, to string) {
	http.SetCookie(w, &http.Cookie{
		Name: g.cookie(), Value: g.session(), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.Header.Get("X-Forwarded-Proto") == "https", // the Route speaks TLS
	})
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, to, http.StatusSeeOther)
}

//go:embed login.html
var pages embed.FS

// refuse answers browsers with the login page and programs with one line.
func (g *gate) refuse(w http.ResponseWriter, r *http.Request, why string) {
	w.Header().Set("Cache-Control", "no-store")
	if !isPage(r) && r.URL.Path != loginPath {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+g.service.Name+`"`)
		http.Error(w, g.service.Name+" requires its token.", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
	w.WriteHeader(http.StatusUnauthorized)
	page := template.Must(template.ParseFS(pages, "login.html"))
	_ = page.Execute(w, map[string]string{"Service": g.service.Name, "Why": why, "Path": loginPath}) // the reader is gone
}

// cookiePrefix begins the names of the cookies of all services of all environments.
const cookiePrefix = "mlenv-"

func (g *gate) cookie() string { return cookiePrefix + g.service.Name }

// session returns the cookie's value: it proves that its owner had the token, and becomes invalid with another token.
func (g *gate) session() string {
	mac := hmac.New(sha256.New, []byte(g.token))
	mac.Write([]byte("session of " + g.service.Name))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// hasCookie looks at all cookies of that name, because a page of another environment may have set one for a parent domain.
func (g *gate) hasCookie(r *http.Request) bool {
	return slices.ContainsFunc(r.CookiesNamed(g.cookie()), func(cookie *http.Cookie) bool { return same(cookie.Value, g.session()) })
}

// hasHeader checks the header of programs: Bearer, or token as Jupyter's clients send it.
func (g *gate) hasHeader(r *http.Request) bool {
	kind, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return (strings.EqualFold(kind, "Bearer") || strings.EqualFold(kind, "token")) && same(value, g.token)
}

// withoutOurs removes what is for gates alone: sessions of other services, and of other environments under the same host name, too.
func (g *gate) withoutOurs(r *http.Request) {
	var others []string
	for part := range strings.SplitSeq(strings.Join(r.Header["Cookie"], ";"), ";") {
		part = strings.TrimSpace(part)
		if name, _, _ := strings.Cut(part, "="); part != "" && !strings.HasPrefix(strings.TrimSpace(name), cookiePrefix) {
			others = append(others, part)
		}
	}
	r.Header.Del("Cookie")
	if len(others) > 0 {
		r.Header.Set("Cookie", strings.Join(others, "; "))
	}
	r.Header.Del("Authorization")
	if query := r.URL.Query(); query.Has("token") {
		query.Del("token")
		r.URL.RawQuery = query.Encode()
	}
}

// same compares in constant time.
func same(given, right string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(right))
	return right != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// isPage reports whether a browser requests a page.
func isPage(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// sameSite returns false for a page of another origin. Programs send no origin.
func sameSite(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	return err == nil && strings.EqualFold(from.Host, r.Host)
}

// withoutToken returns the address on this host without the token. It starts with one slash, because two would start the name of
// another host.
func withoutToken(u *url.URL) string {
	query := u.Query()
	query.Del("token")
	to := url.URL{Path: "/" + strings.TrimLeft(u.Path, `/\`), RawQuery: query.Encode()}
	return to.String()
}
