// SPDX-License-Identifier: Apache-2.0

// Package oidctest is an issuer of ID tokens that stands in for GitHub's, https://token.actions.githubusercontent.com: discovery, keys, and
// the address at which a job of a workflow asks for its token. Tokens are signed with RS256, as GitHub's are.
package oidctest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Issuer is a running issuer.
type Issuer struct {
	// URL is the issuer's address; CA is its certificate, in PEM.
	URL string
	CA  []byte
	// Subject is the job's, as in repo:me/model:ref:refs/heads/main.
	Subject string
	// Lifetime is how long each token is valid.
	Lifetime time.Duration

	key    *rsa.PrivateKey
	client *http.Client

	mu     sync.Mutex
	issued []string
}

// bearer is the token by which a job asks for an ID token.
const bearer = "the-job's-own"

// Start starts an issuer on an IP address of this machine, until the end of the test.
func Start(t testing.TB, address, subject string) *Issuer {
	t.Helper()
	const bits = 2048
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{Subject: subject, Lifetime: 5 * time.Minute, key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"keys": []map[string]string{{
			"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one",
			"n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("/token", i.token)
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mux)
	server.Listener.Close()
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{i.certificate(t, net.ParseIP(address))}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	i.URL = server.URL
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(i.CA)
	i.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	t.Cleanup(i.client.CloseIdleConnections)
	return i
}

// certificate returns the issuer's certificate, signed by itself, and sets CA.
func (i *Issuer) certificate(t testing.TB, address net.IP) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{address},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &i.key.PublicKey, i.key)
	if err != nil {
		t.Fatal(err)
	}
	i.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.key}
}

// Client trusts the issuer.
func (i *Issuer) Client() *http.Client { return i.client }

// Environment returns what GitHub sets for a job with the permission id-token: write.
func (i *Issuer) Environment() map[string]string {
	return map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": i.URL + "/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": bearer}
}

// Issued returns the tokens that jobs got, oldest first.
func (i *Issuer) Issued() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.issued...)
}

func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+bearer || r.URL.Query().Get("api-version") == "" {
		http.Error(w, "not the job", http.StatusUnauthorized)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	signed, err := i.sign(r.URL.Query().Get("audience"), len(i.issued))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	i.issued = append(i.issued, signed)
	answer(w, map[string]any{"count": len(signed), "value": signed})
}

// sign makes a token; number makes each one differ.
func (i *Issuer) sign(audience string, number int) (string, error) {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": i.URL, "sub": i.Subject, "aud": audience, "jti": fmt.Sprint(number),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(i.Lifetime).Unix(),
	})
	if err != nil {
		return "", err
	}
	text := encode([]byte(`{"alg":"RS256","typ":"JWT","kid":"one"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, digest[:])
	return text + "." + encode(signature), err
}

// Verify returns the subject of a token for the audience, as an API server that trusts the issuer does.
func (i *Issuer) Verify(token, audience string) (subject string, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("it is no JWT")
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(&i.key.PublicKey, crypto.SHA256, digest[:], signature); err != nil {
		return "", err
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		Iss, Sub, Aud string
		Exp           int64
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	if claims.Iss != i.URL || claims.Aud != audience || time.Now().Unix() >= claims.Exp {
		return "", fmt.Errorf("claims %+v: want audience %s, and that it has not expired", claims, audience)
	}
	return claims.Sub, nil
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client reports an answer that is cut
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
