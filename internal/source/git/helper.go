// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The names under which git and git-lfs call this program.
const (
	askpassName = "mlenv-git-askpass"
	sshName     = "mlenv-git-ssh"
)

// Files in the scratch folder, which helperVariable names.
const (
	helperVariable = "MLENV_GIT_SCRATCH"
	helperFileName = "helper.json"
	failureName    = "failure.json"
)

// helperFile has the instructions for the helpers. Only its owner can read the file: the URL may have a password.
type helperFile struct {
	URL     string        `json:"url"`
	AuthDir string        `json:"authDir"`
	Silence time.Duration `json:"silence"`
}

// failure is a helper's error, which git's own messages do not carry.
type failure struct {
	Reason fail.Reason `json:"reason"`
	Text   string      `json:"text"`
	Next   string      `json:"next"`
}

// helps is set by Helper. Without it this program, called as a helper, would do its usual work.
var helps bool

// Helper does what git asks, and exits, if git called this program as its helper. A main function that may fetch calls
// it first.
func Helper() {
	helps = true
	var help func(scratch string, keys keyring, silence time.Duration) error
	switch filepath.Base(os.Args[0]) {
	case askpassName:
		help = askpass
	case sshName:
		help = sshCommand
	default:
		return
	}
	scratch := os.Getenv(helperVariable)
	keys, silence, err := readHelperFile(scratch)
	if err == nil {
		err = help(scratch, keys, silence)
	}
	exit := (*ssh.ExitError)(nil)
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitStatus())
	case err != nil:
		fmt.Fprintln(os.Stderr, keys.cleanText(err.Error()))
		os.Exit(255)
	}
	os.Exit(0)
}

func readHelperFile(scratch string) (keyring, time.Duration, error) {
	content, err := os.ReadFile(filepath.Join(scratch, helperFileName))
	if err != nil {
		return keyring{}, 0, err
	}
	var file helperFile
	if err := json.Unmarshal(content, &file); err != nil {
		return keyring{}, 0, err
	}
	home, err := parseAddress(file.URL)
	if err != nil {
		return keyring{}, 0, err
	}
	auth, err := AuthFromDir(file.AuthDir)
	return newKeyring(auth, home), file.Silence, err
}

// askpass answers a question of git, or of git-lfs with other quotes: Password for 'https://user@host:port':
func askpass(_ string, keys keyring, _ time.Duration) error {
	if len(os.Args) != 2 {
		return fmt.Errorf("%s: want a question", askpassName)
	}
	text, err := keys.answer(os.Args[1])
	if err != nil {
		return fmt.Errorf("%s: %w", askpassName, err)
	}
	fmt.Println(text)
	return nil
}

// answer answers a question of git. A redirect can put a user into the question, and some versions of git print it
// unescaped: https://HOST/@evil.example would read as HOST. So only our own user may precede the host, and nothing may
// follow it.
func (k keyring) answer(question string) (string, error) {
	what, where, ok := strings.Cut(question, " for ")
	scheme, host, isURL := strings.Cut(strings.Trim(where, `'": `), "://")
	for _, user := range []string{k.auth.user, url.User(k.auth.user).String(), url.PathEscape(k.auth.user), url.QueryEscape(k.auth.user)} {
		if rest, found := strings.CutPrefix(host, user+"@"); user != "" && found {
			host = rest
			break
		}
	}
	at, err := url.Parse(scheme + "://" + host)
	if !ok || !isURL || err != nil || strings.ContainsAny(host, `@\?#/%`) || what != "Username" && what != "Password" {
		return "", errors.New("not a question for a user or a password")
	}
	user, password, ok := k.basicAuth(at.Scheme, at.Hostname(), at.Port())
	switch {
	case !ok:
		return "", fmt.Errorf("no credentials for %s", at.Host)
	case what == "Username":
		return user, nil
	}
	return password, nil
}

// remoteCommand matches the commands that git and git-lfs need on a server. git quotes the path; git-lfs does not, and a
// repository's .lfsconfig can name the path.
var remoteCommand = regexp.MustCompile(
	`^(git-upload-pack '([^'!]|'\\['!]')*'|git-lfs-authenticate [A-Za-z0-9/~_.][A-Za-z0-9/~_.+@%,=:-]* download)$`)

// sshCommand is called as OpenSSH is, with [-o OPTION] [-p PORT] [USER@]HOST COMMAND.
func sshCommand(scratch string, keys keyring, silence time.Duration) error {
	a, command, err := parseSSH(os.Args[1:])
	if err != nil {
		return err
	}
	if !remoteCommand.MatchString(command) {
		return fmt.Errorf("%s: refusing to run %q on %s: want git-upload-pack or git-lfs-authenticate with a plain path", sshName, command,
			a.host)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client, err := dialSSH(ctx, a, keys, silence)
	if err != nil {
		return errors.Join(err, writeFailure(scratch, explainDial(keys, a, err)))
	}
	defer func() { _ = client.Close() }() // the session reports what matters
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	if protocol := os.Getenv("GIT_PROTOCOL"); protocol != "" {
		// Many servers accept no variables; they then speak an earlier version.
		_ = session.Setenv("GIT_PROTOCOL", protocol)
	}
	stdin, err := session.StdinPipe()
	if err != nil {
		return err
	}
	session.Stdout, session.Stderr = os.Stdout, os.Stderr
	if err := session.Start(command); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, os.Stdin) // the server's exit status is what counts
		_ = stdin.Close()
	}()
	err = session.Wait()
	if err != nil && strings.HasPrefix(command, "git-lfs-authenticate ") {
		// Not every server has the command; git-lfs then tries the usual place.
		fmt.Println("{}")
		return nil
	}
	return err
}

func parseSSH(args []string) (address, string, error) {
	a := address{scheme: "ssh"}
	flags := pflag.NewFlagSet(sshName, pflag.ContinueOnError)
	flags.SetInterspersed(false)
	flags.StringVarP(&a.port, "port", "p", "", "")
	flags.StringArrayP("option", "o", nil, "")
	if err := flags.Parse(args); err != nil {
		return a, "", fmt.Errorf("%s: %w", sshName, err)
	}
	if args = flags.Args(); len(args) < 2 {
		return a, "", fmt.Errorf("%s: want a host and a command", sshName)
	}
	a.user, a.host = cutUser(args[0])
	a.host = strings.ToLower(strings.Trim(a.host, "[]"))
	return a, strings.Join(args[1:], " "), nil
}

func writeFailure(scratch string, err error) error {
	content, errMarshal := json.Marshal(failure{Reason: fail.ReasonOf(err), Text: err.Error(), Next: fail.NextOf(err)})
	if errMarshal != nil {
		return errMarshal
	}
	return os.WriteFile(filepath.Join(scratch, failureName), content, 0o600)
}

func readFailure(scratch string) error {
	content, err := os.ReadFile(filepath.Join(scratch, failureName))
	var left failure
	if err != nil || json.Unmarshal(content, &left) != nil {
		return nil //nolint:nilerr // there is none
	}
	return &fail.Error{Reason: left.Reason, Err: errors.New(left.Text), Next: left.Next}
}
