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
	between := func(when string, first, got, last time.Time) {
		t.Helper()
		if got.Before(first) || got.After(last) {
			t.Errorf("%s: the clock shows %s, want a time from %s to %s", when, got, first, last)
		}
	}
	wantLocal := func(when string, of *Clients) {
		t.Helper()
		before := time.Now()
		got := of.Now()
		between(when, before, got, time.Now())
	}
	wantLocal("before the first answer", clients)
	get("/api/v1/namespaces/ns/pods")
	wantLocal("after an answer without its time", clients)
	date = time.Now().UTC().Format(http.TimeFormat)
	get("/api/v1/namespaces/ns/pods")
	wantLocal("after an answer that agrees to the second", clients)
	asked := time.Now()
	sent := asked.Add(off).UTC().Truncate(time.Second)
	wantServer := func(when string) {
		t.Helper()
		got := clients.Now()
		between(when, sent, got, sent.Add(time.Since(asked)))
	}
	date = sent.Format(http.TimeFormat)
	for _, path := range []string{"/apis/build.openshift.io/v1/builds", "/api/v1/namespaces/ns/pods/x/proxy/api/v1/", "/version"} {
		get(path)
		wantLocal("after an answer of another server for "+path, clients)
	}
	if _, err := clients.Kube.CoordinationV1().Leases("ns").Get(t.Context(), "x", metav1.GetOptions{}); err == nil {
		t.Error("there is a Lease")
	}
	wantServer("after the answer about a Lease")
	date = "yesterday"
	get("/api/v1/namespaces/ns/pods")
	wantServer("after an invalid time")
	wantLocal("without a server", &Clients{})
}
