// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: first
clusters:
- {name: one, cluster: {server: "https://one.example.org:6443"}}
- {name: two, cluster: {server: "https://two.example.org:6443"}}
users:
- {name: me, user: {token: t}}
contexts:
- {name: first, context: {cluster: one, user: me, namespace: mine}}
- {name: second, context: {cluster: two, user: me}}
`

// The test clears KUBERNETES_SERVICE_HOST, which pods have, because Connect must not take the test for a pod.
func TestConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	type seen struct {
		Host, Namespace string
		InCluster       bool
		Reason          fail.Reason
	}
	for _, tc := range []struct {
		name string
		env  string
		args []string
		want seen
	}{
		{"file by variable", file, nil, seen{Host: "https://one.example.org:6443", Namespace: "mine"}},
		{"file by flag", "", []string{"--kubeconfig", file}, seen{Host: "https://one.example.org:6443", Namespace: "mine"}},
		{"context", file, []string{"--context=second"}, seen{Host: "https://two.example.org:6443", Namespace: "default"}},
		{"namespace", file, []string{"--namespace=other"}, seen{Host: "https://one.example.org:6443", Namespace: "other"}},
		{"no such context", file, []string{"--context=third"}, seen{Reason: fail.InvalidInput}},
		{"no such file", "", []string{"--kubeconfig=/does/not/exist"}, seen{Reason: fail.InvalidInput}},
		{"nothing", "", nil, seen{Reason: fail.InvalidInput}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			withoutHome(t)
			t.Setenv("KUBECONFIG", tc.env)
			var flags Flags
			set := pflag.NewFlagSet("test", pflag.ContinueOnError)
			flags.AddTo(set)
			if err := set.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			var got seen
			clients, err := flags.Connect()
			if err != nil {
				got.Reason = fail.ReasonOf(err)
				if fail.NextOf(err) == "" {
					t.Errorf("no advice with %v", err)
				}
			} else {
				got = seen{Host: clients.Config.Host, Namespace: clients.Namespace, InCluster: clients.InCluster}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Connect (-want +got):\n%s", diff)
			}
		})
	}
}

// withoutHome hides the kubeconfig in the home, whose path client-go keeps from its start.
func withoutHome(t *testing.T) {
	t.Helper()
	before := clientcmd.RecommendedHomeFile
	t.Cleanup(func() { clientcmd.RecommendedHomeFile = before })
	clientcmd.RecommendedHomeFile = filepath.Join(t.TempDir(), "none")
}

// client-go logs an API server's warnings with klog, which prints them between the lines of a command.
func TestClientsLogNothing(t *testing.T) {
	warned := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		warned = true
		w.Header().Set("Warning", `299 - "v1 ComponentStatus is deprecated"`)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "PodList", "apiVersion": "v1"}`))
	}))
	defer server.Close()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func(before *os.File) { os.Stderr = before }(os.Stderr)
	os.Stderr = stderr // klog reads it for each line
	clients, err := NewClients(&rest.Config{Host: server.URL}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.Kube.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(stderr.Name()); err != nil || len(written) > 0 || !warned {
		t.Errorf("standard error has %q, %v; the server warned: %t", written, err, warned)
	}
}

// The error names a kubeconfig that is missing or has no cluster, and a namespace with an invalid name.
func TestConnectNamesWhatIsWrong(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	withoutHome(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		variable string
		flags    Flags
		want     string
	}{
		{"", Flags{}, "a kubeconfig with a cluster in ~/.kube/config"},
		{"/does/not/exist", Flags{}, "a kubeconfig with a cluster in $KUBECONFIG, which is /does/not/exist"},
		{"/does/not/exist", Flags{Kubeconfig: empty}, "a kubeconfig with a cluster in " + empty},
		{"", Flags{Namespace: "My_Team"}, `--namespace "My_Team": `},
	} {
		t.Setenv("KUBECONFIG", tc.variable)
		if _, err := tc.flags.Connect(); fail.ReasonOf(err) != fail.InvalidInput || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("$KUBECONFIG %q, %+v: %v; want %q", tc.variable, tc.flags, err, tc.want)
		}
	}
}
