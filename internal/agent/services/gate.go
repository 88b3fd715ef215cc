package services

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// loginPath is where the form of the login page goes.
const loginPath = "/.mlenv/login"

// gate is a reverse proxy that lets nobody through without the service's token:
// in the URL once or in the form, after which a cookie stands for it, or in the
// header Authorization.
type gate struct {
	service agent.Service
	token   string
	proxy   *httputil.ReverseProxy
}

// newGate stands before what listens at the address, and wants the authorization
// itself unless that is empty.
func newGate(service agent.Service, token, address, authorization string) *gate {
	g := &gate{service: service, token: token}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", address
			r.SetXForwarded()
			g.withoutOurs(r.Out)
			if authorization != "" {
				r.Out.Header.Set("Authorization", authorization)
			}
		},
		// What streams is passed on at once.
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, service.Name+" does not answer yet, or does not run. Its log is on the node.", http.StatusBadGateway)
		},
	}
	return g
}

// handler also refuses what another site's page asks for: such a page runs in a
// browser that may have the cookie.
func (g *gate) handler() http.Handler {
	// Not a ServeMux, which would tidy up the paths of others.
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
	if !same(strings.TrimSpace(r.PostFormValue("token")), g.token) {
		g.refuse(w, r, "That is not the token.")
		return
	}
	g.letIn(w, r, "/")
}

func (g *gate) pass(w http.ResponseWriter, r *http.Request) {
	given := r.URL.Query().Get("token")
	switch right := same(given, g.token); {
	case right && isPage(r):
		g.letIn(w, r, withoutToken(r.URL))
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
	g.proxy.ServeHTTP(w, r)
}

// letIn gives the cookie and goes to an address without the token, which so stays
// out of the browser's history.
func (g *gate) letIn(w http.ResponseWriter, r *http.Request, to string) {
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

// refuse shows the login page to people, and one line to programs.
func (g *gate) refuse(w http.ResponseWriter, r *http.Request, why string) {
	w.Header().Set("Cache-Control", "no-store")
	if !isPage(r) && r.URL.Path != loginPath {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+g.service.Name+`"`)
		http.Error(w, g.service.Name+" wants its token.", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
	w.WriteHeader(http.StatusUnauthorized)
	page := template.Must(template.ParseFS(pages, "login.html"))
	_ = page.Execute(w, map[string]string{"Service": g.service.Name, "Why": why, "Path": loginPath}) // the reader is gone
}

func (g *gate) cookie() string { return "mlenv-" + g.service.Name }

// session is the cookie's value: it shows that its owner had the token, and is of
// no use once there is another.
func (g *gate) session() string {
	mac := hmac.New(sha256.New, []byte(g.token))
	mac.Write([]byte("session of " + g.service.Name))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func (g *gate) hasCookie(r *http.Request) bool {
	cookie, err := r.Cookie(g.cookie())
	return err == nil && same(cookie.Value, g.session())
}

// hasHeader is of programs: Bearer as everywhere, token as Jupyter's clients have it.
func (g *gate) hasHeader(r *http.Request) bool {
	kind, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return (strings.EqualFold(kind, "Bearer") || strings.EqualFold(kind, "token")) && same(value, g.token)
}

// withoutOurs takes out what is for the gate alone.
func (g *gate) withoutOurs(r *http.Request) {
	var others []string
	for part := range strings.SplitSeq(strings.Join(r.Header["Cookie"], ";"), ";") {
		part = strings.TrimSpace(part)
		if name, _, _ := strings.Cut(part, "="); part != "" && name != g.cookie() {
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

// same compares in a time that tells nothing of the one that is right.
func same(given, right string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(right))
	return right != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// isPage is true where a person's browser asks for something to show.
func isPage(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// sameSite is false of a page of another origin; programs send none.
func sameSite(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	return err == nil && strings.EqualFold(from.Host, r.Host)
}

// withoutToken is the same address on this host: one slash first, because two
// would begin the name of another.
func withoutToken(u *url.URL) string {
	query := u.Query()
	query.Del("token")
	to := url.URL{Path: "/" + strings.TrimLeft(u.Path, `/\`), RawQuery: query.Encode()}
	return to.String()
}
