// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/secretdir"
)

// tokenUser is sent with a token without a user name. GitHub and GitLab accept any name, Bitbucket this one.
const tokenUser = "x-token-auth"

// Auth holds the credentials for git servers. Its zero value is anonymous.
type Auth struct {
	user, password string
	key            ssh.Signer
	// dir is the Secret's folder, empty for none.
	dir string
	// knownHosts is the path of a known_hosts file, empty for none.
	knownHosts string
	// roots are certificate authorities in addition to the system's, in PEM.
	roots string
}

// Format shows no secret with any verb.
func (Auth) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, "auth(...)") }

// AuthFromDir reads a mounted Secret: username, password or token for HTTPS, ssh-privatekey and known_hosts for ssh. No
// key is required; an empty name, and the folder none, are anonymous. Errors: InvalidInput.
func AuthFromDir(dir string) (Auth, error) {
	values, err := secretdir.Read(dir)
	if err != nil || values == nil {
		return Auth{}, err
	}
	// The helpers, which read the folder again, run in another one.
	if dir, err = filepath.Abs(dir); err != nil {
		return Auth{}, err
	}
	for key, value := range values {
		values[key] = strings.TrimSpace(value)
	}
	a := Auth{user: values["username"], password: cmp.Or(values["password"], values["token"]), dir: dir}
	if a.user == "" && a.password != "" {
		a.user = tokenUser
	}
	if _, ok := values["known_hosts"]; ok {
		a.knownHosts = filepath.Join(dir, "known_hosts")
	}
	if key := values["ssh-privatekey"]; key != "" {
		// The parser needs the newline that was trimmed.
		signer, err := ssh.ParsePrivateKey([]byte(key + "\n"))
		if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
			return Auth{}, fail.Advise(
				fail.Because(fail.InvalidInput, errors.New("reading git secret: ssh-privatekey has a passphrase: want a key without one")),
				"ssh-keygen -t ed25519 -N '' -f deploy-key   # and add deploy-key.pub to the repository")
		}
		if err != nil {
			return Auth{},
				fail.Because(fail.InvalidInput, errors.New("reading git secret: ssh-privatekey: it is not a private key in PEM or OpenSSH form"))
		}
		a.key = signer
	}
	if a.password == "" && a.key == nil && a.knownHosts == "" {
		return Auth{}, fail.Becausef(fail.InvalidInput, "reading git secret %s: its keys are %s: want username and password, or token, or "+
			"ssh-privatekey and known_hosts",
			filepath.Base(dir), strings.Join(slices.Sorted(maps.Keys(values)), ", "))
	}
	return a, nil
}

// WithCAFile trusts the certificates of a PEM bundle in addition to the system's. A missing file, or an empty name, adds
// none.
func (a Auth) WithCAFile(path string) (Auth, error) {
	if path == "" {
		return a, nil
	}
	bundle, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(bundle)) == 0 {
		return a, nil
	}
	if err != nil {
		return Auth{}, fail.Because(fail.InvalidInput, fmt.Errorf("reading CA file: %w", err))
	}
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return Auth{}, fail.Becausef(fail.InvalidInput, "reading CA file %s: it has no certificate: want PEM", path)
	}
	a.roots = string(bundle)
	return a, nil
}

// systemRoots are the files where systems keep certificate authorities. The first that exists counts.
var systemRoots = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// writeRoots writes the system's authorities and the given ones to one file, because git reads only one. It returns "" if
// the system's are enough.
func (a Auth) writeRoots(file string) (string, error) {
	if a.roots == "" {
		return "", nil
	}
	return file, os.WriteFile(file, slices.Concat(trustedHere(), []byte{'\n'}, []byte(a.roots)), 0o600)
}

// trustedHere returns the certificate authorities of this machine as PEM, nil if none of the known files exists.
func trustedHere() []byte {
	for _, name := range append([]string{os.Getenv("SSL_CERT_FILE")}, systemRoots...) {
		if content, err := os.ReadFile(name); err == nil {
			return content
		}
	}
	return nil
}

type keyring struct {
	auth Auth
	home address
}

// newKeyring uses the user info of the URL if the Secret has none.
func newKeyring(auth Auth, home address) keyring {
	if home.scheme != "ssh" && auth.password == "" && (home.user != "" || home.password != "") {
		auth.user, auth.password = home.user, home.password
		if auth.password == "" {
			// https://TOKEN@HOST/
			auth.user, auth.password = tokenUser, home.user
		}
	}
	return keyring{auth: auth, home: home}
}

func (k keyring) basicAuth(scheme, host, port string) (user, password string, ok bool) {
	if k.auth.password == "" || !strings.EqualFold(host, k.home.host) {
		return "", "", false
	}
	if k.home.scheme == "ssh" {
		// Another service of the same host, such as LFS: encrypted only.
		ok = scheme == "https"
	} else {
		ok = portOf(scheme, port) == portOf(k.home.scheme, k.home.port) && scheme == k.home.scheme
	}
	return k.auth.user, k.auth.password, ok
}

// cleanText makes a server's text fit to be shown: short, printable, without the secrets that were sent to the server.
func (k keyring) cleanText(text string) string {
	if k.auth.password != "" {
		basic := base64.StdEncoding.EncodeToString([]byte(k.auth.user + ":" + k.auth.password))
		for _, secret := range []string{k.auth.password, url.QueryEscape(k.auth.password), basic} {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return humanize.OneLine(withoutQueries(text), maxShown)
}

// urlQuery matches the query of a URL. That of an LFS object can be a signature that grants access.
var urlQuery = regexp.MustCompile(`(https?://[^\s"'?]*)\?[^\s"']*`)

func withoutQueries(text string) string { return urlQuery.ReplaceAllString(text, "$1?...") }

// maxShown is how many bytes of a server's text an error shows.
const maxShown = 500

func portOf(scheme, port string) string {
	return cmp.Or(port, map[string]string{"https": "443", "http": "80", "ssh": "22"}[scheme])
}
