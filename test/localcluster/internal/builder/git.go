package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	buildv1 "github.com/openshift/api/build/v1"
)

// clone clones the repository at its ref or revision into the source folder.
func (j *job) clone(ctx context.Context, source *buildv1.GitBuildSource) error {
	fmt.Fprintf(j.out, "Cloning %q ...\n", source.URI)
	env, cleanup, err := gitEnvironment(source)
	if err != nil {
		return err
	}
	defer cleanup()
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Env = env
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			return "", errors.New(strings.TrimSpace(said.String()))
		}
		return strings.TrimSpace(out.String()), nil
	}
	if _, err := git("ls-remote", "--heads", source.URI); err != nil {
		switch {
		case strings.Contains(err.Error(), "Authentication failed"), strings.Contains(err.Error(), "Permission denied"):
			return fmt.Errorf("failed to fetch requested repository %q with provided credentials", source.URI)
		case strings.Contains(err.Error(), "not found"):
			return fmt.Errorf("requested repository %q not found", source.URI)
		}
		return err
	}
	at := source.Ref
	if r := j.build.Spec.Revision; r != nil && r.Git != nil && r.Git.Commit != "" {
		at = r.Git.Commit
	}
	if at == "" {
		if _, err := git("clone", "--quiet", "--recursive", "--depth=1", source.URI, j.dir); err != nil {
			return err
		}
	} else {
		if _, err := git("clone", "--quiet", source.URI, j.dir); err != nil {
			return err
		}
		if _, err := git("-C", j.dir, "checkout", "--quiet", at); err != nil {
			if _, ferr := git("-C", j.dir, "fetch", "--quiet", source.URI, at); ferr != nil {
				return err
			}
			if _, err := git("-C", j.dir, "checkout", "--quiet", "FETCH_HEAD"); err != nil {
				return err
			}
		}
		if _, err := git("-C", j.dir, "submodule", "update", "--quiet", "--init", "--recursive"); err != nil {
			return err
		}
	}
	described, err := git("-C", j.dir, "log", "-1", "--format=%H%n%s%n%an%n%ae%n%cn%n%ce%n%ad")
	if err != nil {
		return err
	}
	fields := append(strings.Split(described, "\n"), make([]string, 7)...)
	fmt.Fprintf(j.out, "\tCommit:\t%s (%s)\n\tAuthor:\t%s <%s>\n\tDate:\t%s\n", fields[0], fields[1], fields[2], fields[3], fields[6])
	j.report.Revision = &buildv1.SourceRevision{Type: buildv1.BuildSourceGit, Git: &buildv1.GitSourceRevision{
		Commit: fields[0], Message: fields[1],
		Author:    buildv1.SourceControlUser{Name: fields[2], Email: fields[3]},
		Committer: buildv1.SourceControlUser{Name: fields[4], Email: fields[5]},
	}}
	return os.WriteFile(filepath.Join(WorkDir, "commit"), []byte(fields[0]), 0o644)
}

// gitEnvironment is the environment in which git uses the source secret, the
// source's proxies and the cluster's trusted certificates.
func gitEnvironment(source *buildv1.GitBuildSource) (env []string, cleanup func(), err error) {
	home, err := os.MkdirTemp("", "git-")
	if err != nil {
		return nil, nil, err
	}
	cleanup = func() { os.RemoveAll(home) }
	env = append(os.Environ(), "HOME="+home, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true",
		"GIT_SSL_CAINFO="+filepath.Join(TrustedCADir, TrustedCAFile))
	for name, value := range map[string]*string{"HTTP_PROXY": source.HTTPProxy, "HTTPS_PROXY": source.HTTPSProxy, "NO_PROXY": source.NoProxy} {
		if value != nil && *value != "" {
			env = append(env, name+"="+*value, strings.ToLower(name)+"="+*value)
		}
	}
	secret := func(key string) string {
		content, err := os.ReadFile(filepath.Join(SourceSecretDir, key))
		if err != nil {
			return ""
		}
		return string(content)
	}
	config := secret(".gitconfig")
	if password := secret("password"); password != "" {
		at, err := url.Parse(source.URI)
		if err != nil {
			cleanup()
			return nil, nil, fmt.Errorf("cannot parse build URL: %s", source.URI)
		}
		user := secret("username")
		if user == "" {
			user = "builder"
		}
		credentials := (&url.URL{Scheme: at.Scheme, Host: at.Host, User: url.UserPassword(user, strings.TrimSpace(password))}).String()
		if err := os.WriteFile(filepath.Join(home, "credentials"), []byte(credentials+"\n"), 0o600); err != nil {
			cleanup()
			return nil, nil, err
		}
		config += "\n[credential]\n\thelper = store --file=" + filepath.Join(home, "credentials") + "\n"
	}
	if secret("ca.crt") != "" {
		env = append(env, "GIT_SSL_CAINFO="+filepath.Join(SourceSecretDir, "ca.crt"))
	}
	if secret("ssh-privatekey") != "" {
		env = append(env, "GIT_SSH_COMMAND=ssh -i "+filepath.Join(SourceSecretDir, "ssh-privatekey")+" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR")
	}
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(config), 0o600); err != nil {
		cleanup()
		return nil, nil, err
	}
	return env, cleanup, nil
}
