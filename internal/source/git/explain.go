package git

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// explain gives a failure to reach a repository its reason and advice. An error
// that has a reason keeps it; so does the end of the caller's own context.
func explain(ctx context.Context, keys keyring, a address, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fetching %s: %w", a, context.Cause(ctx))
	}
	if known := (*fail.Error)(nil); errors.As(err, &known) {
		return known
	}
	if disk := (*fs.PathError)(nil); errors.As(err, &disk) {
		return local(fmt.Errorf("fetching %s: %w", a, err))
	}
	seen := func(format string, args ...any) error {
		return fail.Becausef(fail.RepositoryUnavailable, "fetching %s: %s", a, fmt.Sprintf(format, args...))
	}
	var (
		dns    *net.DNSError
		status *statusError
		said   *serverError
		dial   *net.OpError
	)
	switch {
	case errors.As(err, &dns):
		return fail.Advise(seen("no address for the name %s: want a host that the cluster can resolve", dns.Name),
			"check the host in repo-url; inside a cluster, try: getent hosts %s", dns.Name)
	case untrusted(err):
		return fail.Advise(seen("the server's certificate is not trusted: %s", root(err)),
			"openssl s_client -showcerts -connect %s   # put the CA that signed it, as PEM, under ca-bundle.crt into the ConfigMap mlenv-trusted-ca, or pass --ca-file", a.url().Host)
	case errors.As(err, &status):
		return explainStatus(keys, a, status, seen)
	case strings.Contains(err.Error(), "ssh: unable to authenticate"):
		return fail.Advise(seen("the server does not take the ssh key: want one that may read the repository"),
			"add the public half of ssh-privatekey (ssh-keygen -yf KEYFILE) to the repository as a deploy key")
	case errors.As(err, &said):
		return fail.Advise(seen("the server says: %s", keys.clean(said.text)),
			"check the path in repo-url, and that this user may read it")
	case errors.As(err, &dial) && dial.Op == "dial":
		return fail.Advise(seen("no connection: %s: want a server that answers", root(err)),
			"check the host and port in repo-url, and that the namespace's egress rules and proxy let it through")
	}
	return fail.Advise(seen("%s", keys.clean(err.Error())), "git ls-remote %s", a)
}

func explainStatus(keys keyring, a address, status *statusError, seen func(string, ...any) error) error {
	text := keys.clean(status.Error())
	_, _, known := keys.basic(a.scheme, a.host, a.port)
	switch status.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		if !known {
			return fail.Advise(seen("%s, and no credentials for this host were given: want a user who may read the repository", text),
				"kubectl create secret generic git --from-literal=username=USER --from-literal=token=TOKEN   # and pass it as git-secret; is the URL right?")
		}
		return fail.Advise(seen("%s to the given credentials: want a user who may read the repository", text),
			"check that the token in the git secret has not expired and may read repositories")
	case http.StatusNotFound, http.StatusGone:
		advice := "check the path in repo-url; a private repository needs git-secret"
		if known {
			advice = "check the path in repo-url, and that the user of the git secret may read it"
		}
		return fail.Advise(seen("%s: no repository there that this user may see", text), "%s", advice)
	}
	return fail.Advise(seen("%s", text), "git ls-remote %s", a)
}

// untrusted says whether a certificate was refused.
func untrusted(err error) bool {
	var (
		check   *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	return errors.As(err, &check) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid)
}

// root is the text of an error without what wraps it.
func root(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return printable(err.Error())
		}
		err = inner
	}
}
