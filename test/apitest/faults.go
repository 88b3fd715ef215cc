// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fault is one way in which a request fails.
type Fault string

// The faults. Reads know no conflict.
const (
	// Refused is an error of etcd before anything was stored, Unsure one after it.
	Refused Fault = "500 before"
	Unsure  Fault = "500 after"
	// Webhook is an admission webhook without a pod.
	Webhook  Fault = "500 webhook"
	Busy     Fault = "429"
	Conflict Fault = "409"
	// Away and Late are answers of a balancer.
	Away Fault = "503"
	Late Fault = "504 after"
	// Reset breaks the connection before the request is carried out, Lost after it, and Cut within the answer.
	Reset Fault = "reset before"
	Lost  Fault = "reset after"
	Cut   Fault = "answer cut"
	// Strange and Odd are errors without a known cause, before and after the request is carried out: no client repeats the request.
	Strange Fault = "500 of an unknown cause before"
	Odd     Fault = "500 of an unknown cause after"
	// Ended is Strange for this request and all later ones, as for a program that ends here.
	Ended Fault = "500 from here on"
)

// Faults returns the faults that pass: the clients send the request again.
func Faults() []Fault {
	return []Fault{Refused, Unsure, Webhook, Busy, Conflict, Away, Late, Reset, Lost, Cut}
}

// Writes reports whether a request is one of those that change something.
func Writes(call string) bool { return !strings.HasPrefix(call, http.MethodGet+" ") }

// Injector fails one request once.
type Injector struct {
	next http.RoundTripper
	// call is the request that fails, "" for none.
	call  string
	fault Fault

	mu    sync.Mutex
	seen  map[string]int
	calls []string
	done  bool
}

// NewInjector returns the injector of a fault in the request that Calls has named, "" for none.
func NewInjector(call string, fault Fault) *Injector {
	return &Injector{call: call, fault: fault, seen: map[string]int{}}
}

// Wrap puts the injector in front of the network.
func (i *Injector) Wrap(next http.RoundTripper) http.RoundTripper {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next = next
	return i
}

// Calls returns the requests so far, each with its number among the requests of the same verb and resource.
func (i *Injector) Calls() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.calls)
}

// Happened reports whether the fault was injected.
func (i *Injector) Happened() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.done
}

// RoundTrip implements http.RoundTripper.
func (i *Injector) RoundTrip(request *http.Request) (*http.Response, error) {
	i.mu.Lock()
	kind := request.Method
	if request.URL.Query().Get("watch") != "" {
		kind += " watch"
	}
	kind += " " + request.URL.Path
	i.seen[kind]++
	call := fmt.Sprintf("%s #%d", kind, i.seen[kind])
	i.calls = append(i.calls, call)
	fails := call == i.call && !i.done || i.done && i.fault == Ended
	i.done = i.done || fails
	i.mu.Unlock()
	if !fails {
		return i.next.RoundTrip(request)
	}
	return i.fault.inject(request, i.next)
}

func (f Fault) inject(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	broken := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	if f == Unsure || f == Late || f == Lost || f == Cut || f == Odd {
		response, err := next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		if f == Cut {
			cut := struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(response.Body, 10), failing{}), response.Body}
			response.Body = cut
			return response, nil
		}
		response.Body.Close()
	} else if trace := httptrace.ContextClientTrace(request.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	const etcd, webhook = "etcdserver: leader changed", `Internal error occurred: failed calling webhook "x.example.com": failed to call ` +
		`webhook: Post "https://x.svc:443/": no endpoints available for service "x"`
	switch f {
	case Refused, Unsure:
		return status(request, http.StatusInternalServerError, "", etcd), nil
	case Webhook:
		return status(request, http.StatusInternalServerError, metav1.StatusReasonInternalError, webhook), nil
	case Busy:
		return status(request, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many requests"), nil
	case Conflict:
		return status(request, http.StatusConflict, metav1.StatusReasonConflict, "Operation cannot be fulfilled: the object has been modified"),
			nil
	case Away:
		return status(request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"the server is currently unable to handle the request"), nil
	case Late:
		return status(request, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Timeout: request did not complete within requested "+
			"timeout"), nil
	case Strange, Odd, Ended:
		return status(request, http.StatusInternalServerError, metav1.StatusReasonInternalError, "Internal error occurred: disk on fire"), nil
	case Reset, Lost, Cut:
	}
	return nil, broken
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func status(request *http.Request, code int, reason metav1.StatusReason, message string) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
	header := http.Header{"Content-Type": {"application/json"}}
	if code == http.StatusTooManyRequests {
		header.Set("Retry-After", "0")
	}
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)), Header: header, Request: request,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(bytes.NewReader([]byte(body))), ContentLength: int64(len(body)),
	}
}

// atOnce is how many steps EachFault runs at the same time: they mostly wait for the pause before a repetition.
const atOnce = 12

// EachFault runs a step once without a fault, and then again for each of its requests with each fault in it. What step returns, such
// as its verdict and the objects that are left, must be the same each time. The steps run in parallel, each with a server of its own.
// Reviews of one kind are alike, so only the first fails.
func EachFault(t *testing.T, step func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string) {
	t.Helper()
	SomeFaults(t, len(Faults()), step)
}

// SomeFaults is EachFault for a step that takes long: each request fails in at most so many ways, the next one in others, and also in
// those of more.
func SomeFaults(t *testing.T, most int, step func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string, more ...Fault) {
	t.Helper()
	plainly := NewInjector("", "")
	want := step(t, plainly.Wrap)
	calls := plainly.Calls()
	if len(calls) == 0 {
		t.Fatal(errors.New("the step asked the API server nothing"))
	}
	t.Logf("%d requests: %s; want %s", len(calls), strings.Join(calls, ", "), want)
	var all, missed int
	var mu sync.Mutex
	var running sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	next := 0
	for _, call := range calls {
		faults := slices.DeleteFunc(append(Faults(), more...), func(fault Fault) bool { return !fault.applies(call) })
		for range min(most, len(faults)) {
			fault := faults[next%len(faults)]
			next++
			sure := Writes(call) && !renews(call)
			if sure {
				all++
			}
			turns <- struct{}{}
			running.Go(func() {
				defer func() { <-turns }()
				t.Run(fmt.Sprintf("%s %s", fault, call), func(t *testing.T) {
					injector := NewInjector(call, fault)
					if got := step(t, injector.Wrap); got != want {
						t.Errorf("got %s\nwant %s", got, want)
					}
					if sure && !injector.Happened() {
						mu.Lock()
						missed++
						mu.Unlock()
					}
				})
			})
		}
	}
	running.Wait()
	const rare = 10
	if missed > all/rare {
		t.Errorf("%d of %d faults of writes did not happen: want at most one of %d", missed, all, rare)
	}
}

// renews reports whether a request may be the renewal of a Lease. How many of them a step sends depends on the time that it takes, as
// the number of its reads does.
func renews(call string) bool {
	return strings.HasPrefix(call, http.MethodPut+" ") && strings.Contains(call, "/leases/")
}

// applies reports whether a request can fail so. A read knows no conflict, and does not show whether it was carried out. A watch has no
// end of its answer.
func (f Fault) applies(call string) bool {
	if strings.Contains(call, "reviews #") && !strings.HasSuffix(call, "#1") {
		return false
	}
	if Writes(call) {
		return true
	}
	switch f {
	case Refused, Busy, Away, Reset, Strange, Ended:
		return true
	case Cut:
		return !strings.HasPrefix(call, "GET watch")
	case Unsure, Webhook, Conflict, Late, Lost, Odd:
	}
	return false
}
