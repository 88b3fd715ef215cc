// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// StartFor starts the agent of an environment's only node with the certificates that an API server has for it. It knows the cluster's
// names.
func StartFor(t testing.TB, server *apitest.Server, environment string) *Node {
	t.Helper()
	data := func(secret, key string) []byte {
		content, _ := server.Get("/api/v1/namespaces/ns/secrets/" + environment + secret)["data"].(apitest.Object)
		text, _ := content[key].(string)
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Error(err)
		}
		return decoded
	}
	const agents, clients = "-agent-server", "-agent-client"
	node := StartWith(t, 1, Options{Certificates: objects.Certificates{
		CA: data(agents, "ca.crt"), ServerCert: data(agents, "tls.crt"), ServerKey: data(agents, "tls.key"),
		ClientCert: data(clients, "tls.crt"), ClientKey: data(clients, "tls.key"),
	}})[0]
	node.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/resolve" {
				_ = json.NewEncoder(w).Encode(agent.Resolution{})
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	return node
}

// FakeSMI installs an nvidia-smi that reports two GPUs.
func FakeSMI(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\n"
	for _, gpu := range []string{"0, GPU-a", "1, GPU-b"} {
		script += "echo '" + gpu + ", NVIDIA H100 80GB HBM3, 580.1, 81559, 4, 0, 30, 0x0000000000000001, None, 0, 00000000:19:00.0, " +
			"Disabled, 9.0'\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
