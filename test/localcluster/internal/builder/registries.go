// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// login has the credentials for a registry, as in both types of secrets.
type login struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Auth     string `json:"auth,omitempty"`
}

// authFile writes the logins of a mounted secret, of either type, in the format of buildah. Without a mounted secret the
// file has no logins.
func authFile(secretDir, path string) error {
	logins := map[string]login{}
	var config struct {
		Auths map[string]login `json:"auths"`
	}
	for name, target := range map[string]any{".dockercfg": &logins, ".dockerconfigjson": &config} {
		content, err := os.ReadFile(filepath.Join(secretDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := json.Unmarshal(content, target); err != nil {
			return fmt.Errorf("error reading docker auth configuration: %w", err)
		}
	}
	for host, l := range config.Auths {
		logins[host] = l
	}
	auths := map[string]login{}
	for host, l := range logins {
		if l.Auth == "" {
			l.Auth = base64.StdEncoding.EncodeToString([]byte(l.Username + ":" + l.Password))
		}
		auths[host] = login{Auth: l.Auth}
	}
	content, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// configureRegistries configures buildah to use one registry without TLS, and to accept images without signatures.
func configureRegistries(insecure string) error {
	files := map[string]string{
		"/etc/containers/registries.conf": "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"permissive\"\n" +
			fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", insecure),
		"/etc/containers/policy.json": `{"default":[{"type":"insecureAcceptAnything"}]}`,
	}
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
