// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// sshHost is a node as the programs of OpenSSH see it.
type sshHost struct {
	*testing.T
	node   *agenttest.Node
	dir    string
	signer ssh.Signer
	server agent.SSHServer
}

// newSSHHost starts an agent that allows a new key, and writes the configuration of a host "node".
func newSSHHost(t *testing.T) *sshHost {
	t.Helper()
	for _, program := range []string{"ssh", "scp", "sftp", "rsync"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install openssh-client rsync", program)
		}
	}
	h := &sshHost{T: t, node: agenttest.Start(t, 1)[0], dir: t.TempDir()}
	h.signer = h.newKey("id")
	var err error
	if h.server, err = h.node.Client.AllowSSH(t.Context(), authorized(h.signer)); err != nil {
		t.Fatal(err)
	}
	h.write("known_hosts", "node "+h.server.HostKey+"\n")
	h.write("config", h.configuration("id"))
	return h
}

// configuration returns ssh's configuration for the host with a key.
func (h *sshHost) configuration(key string) string {
	return fmt.Sprintf("Host node\n HostName %s\n Port %d\n HostKeyAlias node\n IdentityFile \"%s\"\n IdentitiesOnly yes\n"+
		" UserKnownHostsFile \"%s\"\n"+
		" GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n BatchMode yes\n",
		h.node.Config.Loopback, h.server.Port, filepath.Join(h.dir, key), filepath.Join(h.dir, "known_hosts"))
}

func authorized(signer ssh.Signer) string {
	return string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
}

func (h *sshHost) write(name, content string) (path string) {
	h.Helper()
	path = filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		h.Fatal(err)
	}
	return path
}

// newKey creates a key and writes it into a file.
func (h *sshHost) newKey(name string) ssh.Signer {
	h.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		h.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(secret, "")
	if err != nil {
		h.Fatal(err)
	}
	h.write(name, string(pem.EncodeToMemory(block)))
	signer, err := ssh.NewSignerFromKey(secret)
	if err != nil {
		h.Fatal(err)
	}
	return signer
}

// How long the tests wait for programs that would not end at all.
const timeForAClientToEnd, timeForAProcessToEnd = 2 * time.Minute, time.Minute

// command returns a program of OpenSSH, or rsync, with the configuration of the host.
func (h *sshHost) command(program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(h.Context(), timeForAClientToEnd)
	h.Cleanup(cancel)
	file := filepath.Join(h.dir, "config")
	config := []string{"-F", file}
	if program == "rsync" {
		config = []string{"-e", "ssh -F '" + file + "'"}
	}
	return exec.CommandContext(ctx, program, append(config, args...)...)
}

// run returns the output, the errors, and the exit code.
func (h *sshHost) run(stdin, program string, args ...string) (stdout, stderr string, code int) {
	h.Helper()
	var out, problems bytes.Buffer
	command := h.command(program, args...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &out, &problems
	err := command.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		h.Fatal(err)
	}
	return out.String(), problems.String(), command.ProcessState.ExitCode()
}

// succeeds returns the output of a program that has to succeed.
func (h *sshHost) succeeds(stdin, program string, args ...string) string {
	h.Helper()
	out, problems, code := h.run(stdin, program, args...)
	if code != 0 {
		h.Fatalf("%s %q: exit code %d: %s%s", program, args, code, out, problems)
	}
	return out
}

// contains fails the test unless the text contains what is wanted.
func (h *sshHost) contains(text, want string) {
	h.Helper()
	if !strings.Contains(text, want) {
		h.Errorf("%q does not contain %q", text, want)
	}
}

func TestSSHCommands(t *testing.T) {
	h := newSSHHost(t)
	workspace := h.node.Config.Paths.Workspace
	for _, test := range []struct {
		name, stdin, command string
		stdout, stderr       string
		code                 int
	}{
		{"output and errors apart", "", "echo out; echo problem >&2", "out\n", "problem\n", 0},
		{"exit code", "", "exit 42", "", "", 42},
		{"a signal", "", "kill -9 $$", "", "", 255},
		{"the end of the input", "several\nlines\n", "cat; echo and the end", "several\nlines\nand the end\n", "", 0},
		{"input that nobody reads", strings.Repeat("x", 4<<20), "echo done", "done\n", "", 0},
		{"the environment of jobs", "", "echo $NODE_RANK $USER $MASTER_ADDR", "0 mlenv " + h.node.Config.Host(0) + "\n", "", 0},
		{"the folder", "", "pwd", workspace + "\n", "", 0},
		{"no terminal", "", "test -t 0 || echo none", "none\n", "", 0},
		{"processes that hold the output", "", "(sleep 0.3; echo late) & echo early", "early\nlate\n", "", 0},
		{"a shell", "echo of the shell; exit 3\n", "", "of the shell\n", "", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := []string{"-T", "node"}
			if test.command != "" {
				args = append(args, test.command)
			}
			out, problems, code := h.run(test.stdin, "ssh", args...)
			if out != test.stdout || problems != test.stderr || code != test.code {
				t.Errorf("got %q, %q, %d; want %q, %q, %d", out, problems, code, test.stdout, test.stderr, test.code)
			}
		})
	}
	out := h.succeeds("", "ssh", "-o", "SetEnv=LANG=x LC_ALL=y LD_PRELOAD=z", "node", "env")
	h.contains(out, "\nLANG=x\n")
	h.contains(out, "\nLC_ALL=y\n")
	if strings.Contains(out, "LD_PRELOAD=z") {
		t.Error("the client sets LD_PRELOAD")
	}
	out, problems, code := h.run("", "ssh", "-tt", "node", "tty; echo terminal >&2; exit 7")
	if h.contains(out, "/dev/pts/"); !strings.Contains(out, "terminal\r\n") || code != 7 {
		t.Errorf("with a terminal: %q, %q, %d; want both outputs on it and 7", out, problems, code)
	}
}

// The repository that was synced is the folder of commands and of relative paths.
func TestSSHStartsInTheRepository(t *testing.T) {
	h := newSSHHost(t)
	repository := filepath.Join(h.node.Config.Paths.Workspace, "repo")
	if err := os.MkdirAll(repository, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := h.succeeds("", "ssh", "node", "pwd"); got != repository+"\n" {
		t.Errorf("pwd: %s, want %s", got, repository)
	}
	h.succeeds("", "scp", h.write("file", "content"), "node:file")
	if content, err := os.ReadFile(filepath.Join(repository, "file")); err != nil || string(content) != "content" {
		t.Errorf("a copy to a relative path: %q, %v", content, err)
	}
}

func TestSSHCopies(t *testing.T) {
	h := newSSHHost(t)
	workspace := h.node.Config.Paths.Workspace
	content := make([]byte, 20<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	big := h.write("big", string(content))
	same := func(path string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || sha256.Sum256(got) != sha256.Sum256(content) {
			t.Errorf("%s: %d bytes with another hash, %v", path, len(got), err)
		}
	}
	for _, protocol := range []string{"-s", "-O"} { // sftp, and the older one, for which the image needs scp
		// A shell reads the older one's paths on the node.
		h.succeeds("", "scp", protocol, big, "node:there"+protocol)
		same(filepath.Join(workspace, "there"+protocol))
		h.succeeds("", "scp", protocol, "node:there"+protocol, filepath.Join(h.dir, "back"+protocol))
		same(filepath.Join(h.dir, "back"+protocol))
	}
	out := h.succeeds("cd '"+workspace+"'\nls -l\nrename there-s renamed\nmkdir folder\nchmod 700 folder\n", "sftp", "-b", "-", "node")
	h.contains(out, "there-O")
	same(filepath.Join(workspace, "renamed"))
	if info, err := os.Stat(filepath.Join(workspace, "folder")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a folder of sftp: %v, %v", info, err)
	}
	tree := filepath.Join(h.dir, "tree")
	if err := os.CopyFS(tree, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	h.succeeds("", "rsync", "-a", tree, big, "node:rsynced/")
	same(filepath.Join(workspace, "rsynced", "big"))
	h.succeeds("", "rsync", "-a", "--checksum", "node:rsynced/", filepath.Join(h.dir, "rsynced"))
	same(filepath.Join(h.dir, "rsynced", "big"))
	if out, err := exec.Command("diff", "-r", tree, filepath.Join(h.dir, "rsynced", "tree")).CombinedOutput(); err != nil {
		t.Errorf("rsync there and back: %v: %s", err, out)
	}
}

// Only the key that was allowed opens a connection, and only the node's own host key is answered.
func TestSSHRefuses(t *testing.T) {
	h := newSSHHost(t)
	other := h.newKey("other")
	h.write("config", h.configuration("other"))
	_, problems, code := h.run("", "ssh", "node", "true")
	if h.contains(problems, "Permission denied (publickey)"); code != 255 {
		t.Errorf("another key: exit code %d", code)
	}
	_, problems, code = h.run("", "ssh", "-o", "PubkeyAuthentication=no", "node", "true")
	if h.contains(problems, "Permission denied (publickey)"); code != 255 {
		t.Errorf("no key: exit code %d", code)
	}
	h.write("config", h.configuration("id"))
	h.write("known_hosts", "node "+authorized(other))
	_, problems, code = h.run("", "ssh", "node", "true")
	if h.contains(problems, "Host key verification failed"); code != 255 {
		t.Errorf("another host key: exit code %d", code)
	}
	for _, key := range []string{"", "ssh-ed25519 AAAA", strings.Replace(authorized(other), "ssh-ed25519", "ssh-rsa", 1)} {
		if _, err := h.node.Client.AllowSSH(t.Context(), key); fail.ReasonOf(err) != fail.InvalidInput {
			t.Errorf("key %q: %v, want InvalidInput", key, err)
		}
	}
}

// A new agent has other keys, and knows none of before.
func TestSSHAfterARestart(t *testing.T) {
	h := newSSHHost(t)
	h.node.End()
	h.node.Restart()
	again, err := h.node.Client.AllowSSH(t.Context(), authorized(h.newKey("other")))
	if err != nil || again.HostKey == h.server.HostKey {
		t.Fatalf("a new agent: %v, %v; want another host key", again, err)
	}
	h.server = again
	if client, err := h.dial(); err == nil {
		_ = client.Close()
		t.Error("the key of before opens a connection")
	}
}

func (h *sshHost) dial() (*ssh.Client, error) {
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(h.server.HostKey))
	if err != nil {
		h.Fatal(err)
	}
	return ssh.Dial("tcp", net.JoinHostPort(h.node.Config.Loopback, strconv.Itoa(h.server.Port)), &ssh.ClientConfig{
		User: "mlenv", Auth: []ssh.AuthMethod{ssh.PublicKeys(h.signer)}, HostKeyCallback: ssh.FixedHostKey(hostKey),
	})
}

// connect returns a session of a client that sends only what a test asks for. OpenSSH sends more by itself.
func (h *sshHost) connect() *ssh.Session {
	h.Helper()
	client, err := h.dial()
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = client.Close() })
	session, err := client.NewSession()
	if err != nil {
		h.Fatal(err)
	}
	return session
}

func TestSSHTerminal(t *testing.T) {
	session := newSSHHost(t).connect()
	if err := session.RequestPty("xterm-256color", 40, 120, nil); err != nil {
		t.Fatal(err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not sleep at the end: a Ctrl-C between its fork and its exec would be lost.
	const script = `trap 'echo size $(stty size)' WINCH; echo at first $(stty size) $TERM; read line; read line; echo "got $line"; read line`
	if err := session.Start(script); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	until := func(want string) {
		t.Helper()
		for buffer := make([]byte, 4096); !strings.Contains(all.String(), want); {
			n, err := out.Read(buffer)
			if all.Write(buffer[:n]); err != nil {
				t.Fatalf("%q does not contain %q: %v", all.String(), want, err)
			}
		}
	}
	until("at first 40 120 xterm-256color")
	// With an answer: the shell must have the signal before the first line, because it may run the trap only when read returns.
	size := ssh.Marshal(struct{ Columns, Rows, Width, Height uint32 }{132, 50, 0, 0})
	if changed, err := session.SendRequest("window-change", true, size); err != nil || !changed {
		t.Fatalf("changing the size: %v, %v", changed, err)
	}
	if _, err := io.WriteString(in, "one\n"); err != nil {
		t.Fatal(err)
	}
	until("size 50 132")
	if _, err := io.WriteString(in, "two\n"); err != nil {
		t.Fatal(err)
	}
	until("got two")
	if _, err := io.WriteString(in, "\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	var exited *ssh.ExitError
	if err := session.Wait(); !errors.As(err, &exited) || exited.Signal() != "INT" && exited.ExitStatus() != 130 {
		t.Errorf("after Ctrl-C: %v, want the end by SIGINT", err)
	}
}

// A client that reads nothing for a while gets all that a program has printed on its terminal, although the program has ended.
func TestSSHSlowClient(t *testing.T) {
	session := newSSHHost(t).connect()
	if err := session.RequestPty("dumb", 40, 120, nil); err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// What is on the way to a client that does not read, and so much more that the rest is in the terminal when the program ends: more than
	// the 4 kB that the agent has read, less than the 11 kB or more that the terminal takes then.
	const size = 2<<20 + 7_000
	if err := session.Start(fmt.Sprintf(`echo $$; head -c %d /dev/zero | tr '\0' x`, size)); err != nil {
		t.Fatal(err)
	}
	// Byte by byte: more that is read here is less on the way.
	var line []byte
	for char := make([]byte, 1); !bytes.HasSuffix(line, []byte("\n")); line = append(line, char...) {
		if _, err := out.Read(char); err != nil {
			t.Fatal(err)
		}
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); running(pid); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > timeForAProcessToEnd {
			t.Fatal("the program waits for the client: want less output")
		}
	}
	const aClientThatIsBusy = 1500 * time.Millisecond
	time.Sleep(aClientThatIsBusy)
	rest, err := io.ReadAll(out)
	if err := cmp.Or(err, session.Wait()); err != nil || len(rest) != size {
		t.Errorf("got %d bytes, %v; want %d", len(rest), err, size)
	}
}

func TestSSHSignal(t *testing.T) {
	session := newSSHHost(t).connect()
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("trap 'echo caught; exit 5' USR1; echo ready; while true; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if err := session.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var exited *ssh.ExitError
	if err := session.Wait(); !errors.As(err, &exited) || exited.ExitStatus() != 5 {
		t.Errorf("after SIGUSR1: %v, want exit code 5", err)
	}
}

// A command ends when its client is gone, with its children. nohup survives, as in mlenv shell.
func TestSSHHangUp(t *testing.T) {
	// If the tests ran under nohup, every process that they start would ignore SIGHUP. A signal that is caught here has
	// its default action in those processes.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	h := newSSHHost(t)
	for _, terminal := range []string{"-T", "-tt"} {
		client := h.command("ssh", terminal, "node",
			`nohup sleep 60 >/dev/null 2>&1 </dev/null & echo $!; sleep 100 & echo $!; echo $$; wait; echo over`)
		out, err := client.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		var deaf, child, leader int
		if _, err := fmt.Fscan(out, &deaf, &child, &leader); err != nil {
			t.Fatal(err)
		}
		// nohup ignores the signal before it becomes sleep.
		for name := []byte(nil); string(name) != "sleep\n"; time.Sleep(10 * time.Millisecond) {
			if name, err = os.ReadFile(fmt.Sprintf("/proc/%d/comm", deaf)); err != nil {
				t.Fatal(err)
			}
		}
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait() // it was killed
		for _, pid := range []int{child, leader} {
			for began := time.Now(); running(pid); time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > timeForAProcessToEnd {
					t.Fatalf("ssh %s: process %d still runs", terminal, pid)
				}
			}
		}
		if err := syscall.Kill(deaf, syscall.SIGKILL); err != nil {
			t.Errorf("ssh %s: a process under nohup: %v, want it to run", terminal, err)
		}
	}
}

// running reports whether the process lives; one that has ended may not have been collected.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// A channel leads to ports of the node's loopback and to no other address.
func TestSSHForwards(t *testing.T) {
	h := newSSHHost(t)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") }))
	defer page.Close()
	at, err := url.Parse(page.URL)
	if err != nil {
		t.Fatal(err)
	}
	const request = "GET / HTTP/1.0\r\n\r\n"
	for _, to := range []string{"127.0.0.1", "localhost"} {
		h.contains(h.succeeds(request, "ssh", "-W", net.JoinHostPort(to, at.Port()), "node"), "the page")
	}
	for to, want := range map[string]string{"192.0.2.1:80": "administratively prohibited", "example.com:80": "administratively prohibited",
		"127.0.0.1:1": "connect failed"} {
		_, problems, code := h.run("", "ssh", "-W", to, "node")
		if h.contains(problems, want); code == 0 {
			t.Errorf("to %s: exit code 0", to)
		}
	}
	// Programs that choose any port choose it at other addresses, so it stays free.
	free, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	if err != nil {
		t.Fatal(err)
	}
	local := free.Addr().String()
	free.Close()
	client := h.command("ssh", "-o", "ExitOnForwardFailure=yes", "-L", local+":"+at.Host, "node", "echo ready; cat")
	in, err := client.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	once := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // ssh waits for the end of forwarded connections
	response, err := once.Get("http://" + local)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(response.Body)
	if err := cmp.Or(err, response.Body.Close()); err != nil || string(content) != "the page" {
		t.Errorf("-L: %q, %v", content, err)
	}
	in.Close()
	if err := client.Wait(); err != nil {
		t.Error(err)
	}
	_, problems, code := h.run("", "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "0:"+at.Host, "node", "true")
	if h.contains(problems, "remote port forwarding failed"); code == 0 {
		t.Error("-R: exit code 0")
	}
}
