// SPDX-License-Identifier: Apache-2.0

package gitserver

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Config has the server's addresses and files.
type Config struct {
	// Dir is the folder that Prepare created.
	Dir               string
	HTTPS, SSH        string
	CertFile, KeyFile string
}

// Serve answers over HTTPS and ssh, read-only, until the context ends.
func Serve(ctx context.Context, config Config) error {
	token, err := os.ReadFile(filepath.Join(config.Dir, TokenFile))
	if err != nil {
		return err
	}
	backend, err := httpBackend(ctx, config.Dir)
	if err != nil {
		return err
	}
	web := &http.Server{
		Addr:              config.HTTPS,
		Handler:           authorize(string(token), backend),
		ReadHeaderTimeout: 10 * time.Second,
	}
	sshConfig, err := sshServerConfig(config.Dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", config.SSH)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { web.Close(); listener.Close() })
	failed := make(chan error, 2)
	go func() { failed <- web.ListenAndServeTLS(config.CertFile, config.KeyFile) }()
	go func() { failed <- serveSSH(ctx, listener, sshConfig, filepath.Join(config.Dir, reposDir)) }()
	log.Printf("git listening on %s and %s", config.HTTPS, config.SSH)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// httpBackend is git's own CGI program.
func httpBackend(ctx context.Context, dir string) (http.Handler, error) {
	out, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("finding git's programs: %w", err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env: []string{
			"GIT_PROJECT_ROOT=" + filepath.Join(dir, reposDir),
			"GIT_HTTP_EXPORT_ALL=1",
			// Partial clones, as GitHub and GitLab allow.
			"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
		},
		InheritEnv: []string{"PATH"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		backend.ServeHTTP(prompt{w, http.NewResponseController(w)}, r)
	}), nil
}

// prompt flushes every write, because git sends keep-alive messages while it prepares a large pack.
type prompt struct {
	http.ResponseWriter
	to *http.ResponseController
}

func (p prompt) Write(data []byte) (int, error) {
	n, err := p.ResponseWriter.Write(data)
	return n, errors.Join(err, p.to.Flush())
}

func authorize(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s", r.Method, r.URL.Path)
		if strings.HasPrefix(r.URL.Path, "/"+Private+".git") {
			_, password, ok := r.BasicAuth()
			if !ok || subtle.ConstantTimeCompare([]byte(password), []byte(token)) != 1 {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
				http.Error(w, "authentication required", http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func sshServerConfig(dir string) (*ssh.ServerConfig, error) {
	hostKey, err := readKey(filepath.Join(dir, hostKeyFile))
	if err != nil {
		return nil, err
	}
	clientKey, err := readKey(filepath.Join(dir, ClientKeyFile))
	if err != nil {
		return nil, err
	}
	allowed := clientKey.PublicKey().Marshal()
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if subtle.ConstantTimeCompare(key.Marshal(), allowed) != 1 {
				return nil, errors.New("unknown key")
			}
			return &ssh.Permissions{}, nil
		},
	}
	config.AddHostKey(hostKey)
	return config, nil
}

func serveSSH(ctx context.Context, listener net.Listener, config *ssh.ServerConfig, repos string) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, channels, requests, err := ssh.NewServerConn(conn, config)
			if err != nil {
				log.Printf("ssh from %s: %v", conn.RemoteAddr(), err)
				return
			}
			go ssh.DiscardRequests(requests)
			for c := range channels {
				if c.ChannelType() != "session" {
					_ = c.Reject(ssh.UnknownChannelType, "only sessions")
					continue
				}
				channel, requests, err := c.Accept()
				if err != nil {
					return
				}
				go session(ctx, channel, requests, repos)
			}
		}()
	}
}

// session serves one `git clone` or `git fetch`: it accepts environment requests for the protocol version, and runs one
// command.
func session(ctx context.Context, channel ssh.Channel, requests <-chan *ssh.Request, repos string) {
	defer channel.Close()
	env := os.Environ()
	for r := range requests {
		switch r.Type {
		case "env":
			var variable struct{ Name, Value string }
			ok := ssh.Unmarshal(r.Payload, &variable) == nil && variable.Name == "GIT_PROTOCOL"
			if ok {
				env = append(env, "GIT_PROTOCOL="+variable.Value)
			}
			_ = r.Reply(ok, nil)
		case "exec":
			var command struct{ Line string }
			err := ssh.Unmarshal(r.Payload, &command)
			_ = r.Reply(err == nil, nil)
			if err == nil {
				code := uploadPack(ctx, command.Line, repos, env, channel)
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
			}
			return
		default:
			_ = r.Reply(false, nil)
		}
	}
}

func uploadPack(ctx context.Context, line, repos string, env []string, channel ssh.Channel) uint32 {
	program, argument, _ := strings.Cut(line, " ")
	name := strings.TrimSuffix(filepath.Base(strings.Trim(argument, "'\"")), ".git")
	if _, known := contents[name]; program != "git-upload-pack" || !known {
		fmt.Fprintf(channel.Stderr(), "fatal: %q is not allowed here or there is no such repository\n", line)
		return 128
	}
	cmd := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "-c", "uploadpack.allowFilter=true", "upload-pack",
		filepath.Join(repos, name+".git"))
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	// Not cmd.Stdin: Wait would then also wait for the client to hang up.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 128
	}
	go func() {
		defer stdin.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := channel.Read(buffer)
			if n > 0 {
				if _, err := stdin.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	if err := cmd.Run(); err != nil {
		log.Printf("ssh %s: %v", line, err)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			return uint32(exit.ExitCode())
		}
		return 128
	}
	return 0
}
