// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestNow is the API server's time, whatever this machine's is.
func TestNow(t *testing.T) {
	const off = 5 * time.Hour
	date := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil
		if date != "" {
			w.Header().Set("Date", date)
		}
		http.Error(w, `{"kind":"Status","code":404,"reason":"NotFound"}`, http.StatusNotFound)
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) {
		_ = clients.Kube.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).Error()
	}
	wantOff := func(when string, want time.Duration) {
		t.Helper()
		if got := time.Until(clients.Now()); got > want+2*time.Second || got < want-2*time.Second {
			t.Errorf("%s: the clock is off by %s, want %s", when, got, want)
		}
	}
	wantOff("before the first answer", 0)
	get("/api/v1/namespaces/ns/pods")
	wantOff("after an answer without its time", 0)
	date = time.Now().Add(off).UTC().Format(http.TimeFormat)
	for _, path := range []string{"/apis/build.openshift.io/v1/builds", "/api/v1/namespaces/ns/pods/x/proxy/api/v1/", "/version"} {
		get(path)
		wantOff("after an answer of another server for "+path, 0)
	}
	if _, err := clients.Kube.CoordinationV1().Leases("ns").Get(t.Context(), "x", metav1.GetOptions{}); err == nil {
		t.Error("there is a Lease")
	}
	wantOff("after the answer about a Lease", off)
	date = "yesterday"
	get("/api/v1/namespaces/ns/pods")
	wantOff("after an invalid time", off)
	if got := (&Clients{}).Now(); time.Since(got) > time.Minute {
		t.Errorf("without a server: %s", got)
	}
}
