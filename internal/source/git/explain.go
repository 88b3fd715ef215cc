// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Messages of git, of libcurl with OpenSSL or GnuTLS, and of git-lfs, all in the C locale. Only this file knows them. They are not
// rows of package known, because what they mean depends on the step's limits, the credentials and what is fetched.
var (
	messageNoHost = regexp.MustCompile(
		`Could not resolve host: (\S+)|lookup (\S+?)(?: on \S+)?: (?:no such host|server misbehaving|[^\n]*i/o timeout)`)
	messageProxy = regexp.MustCompile(
		`Could not resolve proxy: \S+|CONNECT tunnel failed, response \d+|Received HTTP code \d+ from proxy`)
	messageNoConnection = regexp.MustCompile(`Failed to connect to .*|[Cc]onnection refused`)
	messageUntrusted    = regexp.MustCompile(
		`server (?:certificate )?verification failed[^\n]*|SSL certificate problem: [^\n]*|x509: [^\n"]*|no alternative certificate subject ` +
			`name[^\n]*`)
	messageLogin = regexp.MustCompile(
		`could not read (Username|Password) for|Git credentials for \S+ not found|no credentials for|unable to read askpass|Authentication ` +
			`failed for|Authentication required|[Aa]uthorization error`)
	messageStatus   = regexp.MustCompile(`returned error: (\d{3})|HTTP (\d{3})|Client error: .*from HTTP (\d{3})`)
	messageNotFound = regexp.MustCompile(`fatal: repository '[^']*' not found`)
	messageNoGit    = regexp.MustCompile(
		`dumb http transport|not valid: is this a git repository|invalid server response|expected service|invalid content-type (\S+)`)
	messageSilent    = regexp.MustCompile(`Operation too slow|i/o timeout|Operation timed out`)
	messageBrokenOff = regexp.MustCompile(
		`RPC failed; curl [^\n]*|unexpected disconnect[^\n]*|Connection reset by peer|Empty reply from server|non-properly terminated|` +
			`SSL_ERROR_SYSCALL|SSL_(?:read|connect): [^\n]*unexpected eof`)
	messageNoMemory     = regexp.MustCompile(`[Oo]ut of memory|[Cc]annot allocate memory|failed to map`)
	messageKilled       = regexp.MustCompile(`died of signal \d+|CPU time limit exceeded|invalid index-pack output`)
	messageDiskFull     = regexp.MustCompile(`No space left on device|[Dd]isk quota exceeded`)
	messageInsecure     = regexp.MustCompile(`Protocol "?http"? (?:not supported|disabled)|refusing insecure redirect`)
	messageNotOurRef    = regexp.MustCompile(`not our ref|couldn't find remote ref|no such remote ref`)
	messageUnadvertised = regexp.MustCompile(`does not allow request for unadvertised object|want [0-9a-f]{40,64} not valid`)
	messageNoShallow    = regexp.MustCompile(`does not support shallow`)
	messageNoFilter     = "filtering not recognized by server"
	messageOtherHash    = regexp.MustCompile(
		`mismatched algorithms|expected sha/ref, got '[0-9a-f]{64}|does not support this repository's object format`)
	messageUnstorable = regexp.MustCompile(
		`File name too long|Invalid or incomplete multibyte|Illegal byte sequence|unable to create symlink|invalid path`)
	messageQuota = regexp.MustCompile(`(?i)(?:exceeded|over)\b.{0,40}\b(?:quota|budget|bandwidth)|quota.{0,20}exceeded|bandwidth limit`)
	messageNoise = regexp.MustCompile(
		`^(remote: )?(Enumerating|Counting|Compressing) objects|^(remote: )?Total \d|^fetch: Fetching reference|^From |^HEAD is now at`)
	messageUnsafe = regexp.MustCompile(`object [0-9a-f]{40,64}: (\w+: [^\n]*)`)
)

const (
	adviseUnsafe     = "remove or rename these in the repository; data outside it belongs under /datasets"
	adviseLFS        = "keep large files out of git's history: put them into Git LFS or under /datasets"
	adviseConnection = "check the host and port in repo-url, and that the namespace's egress rules and proxy let it through"
)

func outputMatches(err error, message *regexp.Regexp) bool {
	var exit *exitError
	return errors.As(err, &exit) && message.MatchString(exit.text)
}

// retryReason returns why another attempt may succeed, "" if none would.
func (r *repository) retryReason(err error) string {
	host := r.address.url().Host
	switch {
	case outputMatches(err, messageNoHost), outputMatches(err, messageNoConnection):
		return host + " cannot be reached"
	case outputMatches(err, messageBrokenOff) && !outputMatches(err, messageSilent):
		return "The connection to " + host + " broke off"
	}
	return ""
}

func (r *repository) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	a := r.address
	text, err := r.output(ctx, fmt.Sprintf("fetching %s", a), err)
	if err != nil {
		return err
	}
	seen := func(format string, args ...any) error {
		return fail.Becausef(fail.RepositoryUnavailable, "fetching %s: %s", a, fmt.Sprintf(format, args...))
	}
	found := "" // the part of text that the last message matched
	is := func(message *regexp.Regexp) bool {
		found = r.keys.cleanText(message.FindString(text))
		return found != ""
	}
	switch {
	case is(messageUnstorable):
		return fail.Advise(fail.Becausef(fail.UnsafeTree, "writing the files of %s: %s", a, r.words(text)), adviseUnsafe)
	case is(messageUnsafe):
		return fail.Advise(fail.Becausef(fail.UnsafeTree, "checking the objects of %s: want names that stay inside the tree: %s", a, found),
			adviseUnsafe)
	case is(messageProxy):
		return fail.Advise(seen("the proxy does not let it through: %s", found), "see network.proxy in the cluster file, and its no_proxy")
	case is(messageNoHost):
		return noHost(seen, a.host)
	case is(messageUntrusted):
		return fail.Advise(seen("the server's certificate is not trusted: %s", found),
			"openssl s_client -showcerts -connect %s   # put the CA that signed it, as PEM, under ca-bundle.crt into the ConfigMap "+
				"mlenv-trusted-ca, or pass --ca-file", a.url().Host)
	case is(messageInsecure):
		return seen("it is redirected to a server without TLS: want https")
	case is(messageNoMemory):
		return fail.Advise(seen("git needs more than %d MiB of memory: %s", r.limits.memory>>20, found), adviseLFS)
	case is(messageBrokenOff) && !outputMatches(err, messageSilent):
		return fail.Advise(seen("the connection broke off: %s", found), adviseConnection)
	case is(messageKilled) && strings.Count(text, "fatal: ") <= 1: // it had no message of its own
		return fail.Advise(seen("git was killed: it needs more than %s of processor time, or more memory than the container has: %s",
			r.limits.cpu, found), adviseLFS)
	case is(messageSilent):
		return seen("the server sent nothing for %s", r.limits.silence)
	case is(messageNoConnection):
		return fail.Advise(seen("no connection: %s: want a server that answers", found), adviseConnection)
	case is(messageLogin):
		return r.explainStatus(http.StatusUnauthorized, seen, text)
	case is(messageNotFound):
		return r.explainStatus(http.StatusNotFound, seen, text)
	case is(messageStatus):
		return r.explainStatus(status(text), seen, text)
	case is(messageNoGit):
		return fail.Advise(seen("no git repository is served there"), "git ls-remote %s", a)
	case a.scheme == "ssh":
		return fail.Advise(seen("the server reports: %s", r.words(text)), "check the path in repo-url, and that this user may read it")
	}
	return fail.Advise(seen("git failed: %s", r.words(text)), "git ls-remote %s", a)
}

// output returns what a program that failed wrote to stderr. Any other failure has an explanation: the end of the
// caller's context, the failure that a helper left, a reason that err has, or this machine's.
func (r *repository) output(ctx context.Context, doing string, err error) (text string, explained error) {
	exit := (*exitError)(nil)
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	if left := readFailure(r.scratch); left != nil {
		return "", left
	}
	if outputMatches(err, messageDiskFull) {
		err = syscall.ENOSPC
	}
	if !errors.As(err, &exit) {
		if !strings.Contains(err.Error(), r.address.String()) { // an error that names the repository already names the operation
			err = fmt.Errorf("%s: %w", doing, err)
		}
		return "", local(err)
	}
	return exit.text, nil
}

func status(text string) int {
	m := messageStatus.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	code, _ := strconv.Atoi(m[1] + m[2] + m[3]) // digits
	return code
}

// words returns the server's lines in a program's output, or else git's own.
func (r *repository) words(text string) string {
	var remote, other []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch rest, ok := strings.CutPrefix(line, "remote: "); {
		case messageNoise.MatchString(line):
		case ok:
			remote = append(remote, rest)
		case line != "":
			other = append(other, line)
		}
	}
	if len(remote) > 0 {
		other = remote
	}
	return r.keys.cleanText(strings.Join(other, " "))
}

func (r *repository) explainStatus(code int, seen func(string, ...any) error, output string) error {
	text := fmt.Sprintf("the server answers %d %s", code, http.StatusText(code))
	if strings.Contains(output, "remote: ") {
		text += ": " + r.words(output)
	}
	_, _, known := r.keys.basicAuth(r.address.scheme, r.address.host, r.address.port)
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		if !known {
			return fail.Advise(seen("%s, and no credentials for this host were given: want a user who may read the repository", text),
				"kubectl create secret generic git --from-literal=username=USER --from-literal=token=TOKEN   # and pass it as git-secret; is the "+
					"URL right?")
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
	return fail.Advise(seen("%s", text), "git ls-remote %s", r.address)
}

func noHost(seen func(string, ...any) error, host string) error {
	return fail.Advise(seen("no address for the name %s: want a host that the cluster can resolve", host),
		"check the host in repo-url; inside a cluster, try: getent hosts %s", host)
}

func explainDial(keys keyring, a address, err error) error {
	if known := (*fail.Error)(nil); errors.As(err, &known) {
		return known
	}
	seen := func(format string, args ...any) error {
		return fail.Becausef(fail.RepositoryUnavailable, "connecting to %s: %s", a.host, fmt.Sprintf(format, args...))
	}
	var (
		dns     *net.DNSError
		dial    *net.OpError
		timeout net.Error
	)
	switch {
	case errors.As(err, &dns):
		return noHost(seen, dns.Name)
	case strings.Contains(err.Error(), "ssh: unable to authenticate"):
		return fail.Advise(seen("the server does not accept the ssh key: want one that may read the repository"),
			"add the public half of ssh-privatekey (ssh-keygen -yf KEYFILE) to the repository as a deploy key")
	case errors.As(err, &dial) && dial.Op == "dial":
		return fail.Advise(seen("no connection: %s: want a server that answers", humanize.OneLine(dial.Err.Error(), maxShown)), adviseConnection)
	case errors.As(err, &timeout) && timeout.Timeout():
		return seen("the server sends nothing")
	}
	return seen("%s", keys.cleanText(err.Error()))
}

func (r *repository) explainLFS(ctx context.Context, err error) error {
	text, err := r.output(ctx, fmt.Sprintf("fetching LFS objects of %s", r.address), err)
	if err != nil {
		return err
	}
	next := "git lfs fetch --all   # in a clone, with the same account: the answer is the server's own"
	code := status(text)
	switch {
	case messageNoMemory.MatchString(text):
		return fail.Advise(fail.Becausef(fail.LFSPointers, "fetching LFS objects of %s: git-lfs needs more than %d MiB of memory: %s",
			r.address, r.limits.memory>>20, r.words(text)), "check the LFS server: its answers are too large")
	case messageKilled.MatchString(text):
		return fail.Advise(fail.Becausef(fail.LFSPointers,
			"fetching LFS objects of %s: git-lfs was killed: it needs more than %s of processor time, or more memory than the container has: %s",
			r.address, r.limits.cpu, r.words(text)), adviseDatasets)
	case messageQuota.MatchString(text) || code == http.StatusPaymentRequired ||
		code == http.StatusInsufficientStorage || code == 509: // bandwidth limit exceeded
		next = "have the quota of the repository's owner raised, or wait until it is reset; or put the files under /datasets and leave " +
			"them out of the repository"
	case code == http.StatusTooManyRequests || strings.Contains(text, "rate limit"):
		next = "wait; or give the git secret a token, whose limit is higher"
	case messageUntrusted.MatchString(text):
		next = "put the CA of the LFS server, as PEM, under ca-bundle.crt into the ConfigMap mlenv-trusted-ca, or pass --ca-file"
	case code == http.StatusUnauthorized, code == http.StatusForbidden, messageLogin.MatchString(text):
		next = "give the git secret a username and a token that may read the repository's LFS objects, for " + r.keys.home.host
	case strings.Contains(text, "bject does not exist"):
		next = "git lfs fetch --all && git lfs push --all origin   # in a clone that has the objects"
	case code == http.StatusNotFound:
		next = "if the LFS server is elsewhere, name it in .lfsconfig: git config -f .lfsconfig lfs.url https://HOST/PATH"
	}
	return fail.Advise(fail.Becausef(fail.LFSPointers, "fetching LFS objects of %s: %s", r.address, r.words(text)), "%s", next)
}

func local(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fail.Advise(fail.Because(fail.DiskFull, err), "df -h   # the pack and the files need room at the same time")
	}
	return err
}
