// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var (
	// passing matches messages of the API server about failures behind it that pass: of etcd and of webhooks.
	passing = regexp.MustCompile(`etcdserver: |rpc error: code = (?:Unavailable|DeadlineExceeded)|leader changed|transport is closing|` +
		`failed (?:calling|to call) webhook .*(?:context deadline exceeded|Client\.Timeout exceeded|no endpoints available|connection ` +
		`refused|connection reset|` +
		`i/o timeout|no route to host|EOF|TLS handshake timeout|http2: client connection lost)`)
	// webhookFailed matches a failure before anything was stored.
	webhookFailed = regexp.MustCompile(`failed (?:calling|to call) webhook `)
)

// Passes reports whether a request failed for a cause for which the clients repeat what is safe to repeat. Callers of anything else
// look at what the request has changed first.
func Passes(err error) bool {
	if err != nil && apierrors.IsInternalError(err) {
		return passing.MatchString(err.Error())
	}
	return Transient(err)
}

// isOptional reports whether the path belongs to a server behind the API server without which steps do as well.
func isOptional(path string) bool {
	return strings.Contains(path, "/apis/visibility.kueue.x-k8s.io/") || strings.Contains(path, "/apis/metrics.k8s.io/")
}

// renewable reports whether the request has a body that can be sent again, or none.
func renewable(request *http.Request) bool {
	return request.Body == nil || request.Body == http.NoBody || request.GetBody != nil
}

// repeatable reports whether the request may be sent again although it may have been carried out: it then changes nothing, or
// settle recognizes its effect.
func repeatable(request *http.Request) bool {
	if isUpgrade(request) {
		return false
	}
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut:
		return true
	case http.MethodPatch:
		kind, _, _ := mime.ParseMediaType(request.Header.Get("Content-Type"))
		return kind != "application/json-patch+json"
	case http.MethodDelete:
		// Without its UID another object of the name could be deleted.
		return sentUID(sentObject(request)) != ""
	case http.MethodPost:
		if request.URL.Query().Get("dryRun") == "All" || isReview(request.URL.Path) {
			return true
		}
		return isCollection(request.URL.Path) && text(sentObject(request), "metadata", "name") != ""
	}
	return false
}

func isUpgrade(request *http.Request) bool {
	return request.Header.Get("Upgrade") != "" || strings.EqualFold(request.Header.Get("Connection"), "upgrade")
}

// isReview reports whether a POST to the path only asks.
func isReview(of string) bool { return strings.HasSuffix(path.Base(of), "reviews") }

// isCollection reports whether the path names a resource and not an object or a part of one:
// /api/v1/namespaces/NS/pods, or /apis/GROUP/VERSION/clusterroles.
func isCollection(of string) bool {
	parts := strings.Split(strings.Trim(of, "/"), "/")
	i := slices.IndexFunc(parts, func(part string) bool { return part == "api" || part == "apis" }) // a server may have a prefix
	if i < 0 {
		return false
	}
	rest := parts[i+2:]
	if parts[i] == "apis" && len(rest) > 0 {
		rest = rest[1:]
	}
	return len(rest) == 1 || len(rest) == 3 && rest[0] == "namespaces"
}

// streams reports whether the answer has no end that the caller waits for.
func streams(request *http.Request, response *http.Response) bool {
	of := request.URL.Path
	return response.StatusCode == http.StatusSwitchingProtocols || isUpgrade(request) || response.StatusCode < http.StatusBadRequest &&
		(request.URL.Query().Get("watch") != "" || strings.HasSuffix(of, "/log") || strings.Contains(of, "/proxy"))
}

// bufferBody reads the whole body of an answer, and leaves it unread for the next reader.
func bufferBody(response *http.Response) ([]byte, error) {
	content, err := io.ReadAll(response.Body)
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(content))
	return content, err
}

// settle returns the answer that the caller gets for a request whose earlier try may have been carried out (open), and whether
// to send the request again because the conflict that it met has no cause.
func (p retrier) settle(request *http.Request, response *http.Response, open bool) (_ *http.Response, again bool) {
	conflict := response.StatusCode == http.StatusConflict
	switch request.Method {
	case http.MethodDelete:
		if open && response.StatusCode == http.StatusNotFound {
			return replaced(response, http.StatusOK, success()), false
		}
		if conflict {
			return p.settleDelete(request, response, open)
		}
	case http.MethodPost:
		if conflict && reasonOf(response) != alreadyExists { // such as two writers that count on the same quota
			return response, true
		}
		if conflict && open {
			at := *request.URL
			at.Path, at.RawPath = path.Join(at.Path, text(sentObject(request), "metadata", "name")), ""
			return p.adopt(request, at, response, http.StatusCreated), false
		}
	case http.MethodPut, http.MethodPatch:
		if !conflict {
			return response, false
		}
		if text(sentObject(request), "metadata", "resourceVersion") == "" {
			return response, true
		}
		if open {
			return p.adopt(request, *request.URL, response, http.StatusOK), false
		}
	}
	return response, false
}

// settleDelete looks why the deletion of an object by its UID, and perhaps its version, was refused.
func (p retrier) settleDelete(request *http.Request, response *http.Response, open bool) (_ *http.Response, again bool) {
	sent := sentObject(request)
	code, live := p.look(request, *request.URL)
	switch uid, version := sentUID(sent), text(sent, "preconditions", "resourceVersion"); {
	case uid == "" || code != http.StatusOK && code != http.StatusNotFound:
		return response, false
	case code == http.StatusNotFound, text(live, "metadata", "uid") != uid, text(live, "metadata", "deletionTimestamp") != "":
		if open {
			return replaced(response, http.StatusOK, success()), false
		}
		return response, false
	default:
		return response, version == "" || version == text(live, "metadata", "resourceVersion")
	}
}

// adopt replaces a conflict by the object if it has all that the request sent.
func (p retrier) adopt(request *http.Request, at url.URL, conflict *http.Response, code int) *http.Response {
	found, live := p.look(request, at)
	sent := sentObject(request)
	if metadata, ok := sent["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
		delete(metadata, "managedFields")
		delete(metadata, "creationTimestamp")
		delete(metadata, "generation")
	}
	if found != http.StatusOK || sent == nil || !has(live, sent) {
		return conflict
	}
	content, err := json.Marshal(live)
	if err != nil {
		return conflict
	}
	return replaced(conflict, code, content)
}

// look reads the object of a request. The code is 0 without an answer.
func (p retrier) look(request *http.Request, at url.URL) (code int, live map[string]any) {
	at.RawQuery = ""
	asking := request.Clone(request.Context())
	asking.Method, asking.URL, asking.Body, asking.GetBody, asking.ContentLength = http.MethodGet, &at, nil, nil, 0
	asking.Header.Del("Content-Type")
	asking.Header.Set("Accept", "application/json")
	response, err := p.RoundTrip(asking)
	if err != nil {
		return 0, nil
	}
	content, err := bufferBody(response)
	if err != nil || json.Unmarshal(content, &live) != nil {
		return 0, nil
	}
	return response.StatusCode, live
}

// has reports whether an object has all fields that were sent with these values. Lists may have got more elements.
func has(live, sent any) bool {
	switch sent := sent.(type) {
	case nil:
		return true
	case map[string]any:
		fields, ok := live.(map[string]any)
		for name, value := range sent {
			if !has(fields[name], value) {
				return false
			}
		}
		return ok || len(sent) == 0
	case []any:
		elements, _ := live.([]any)
		if len(elements) < len(sent) {
			return false
		}
		for i, element := range sent {
			if !has(elements[i], element) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(live, sent)
}

// sentObject returns what a request sends, nil if that is not an object in JSON.
func sentObject(request *http.Request) (object map[string]any) {
	if request.GetBody == nil {
		return nil
	}
	body, err := request.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	if json.NewDecoder(body).Decode(&object) != nil {
		return nil
	}
	return object
}

func sentUID(options map[string]any) string { return text(options, "preconditions", "uid") }

// text returns the string at the path of fields, "" for none.
func text(object map[string]any, fields ...string) string {
	var value any = object
	for _, field := range fields {
		inner, _ := value.(map[string]any)
		value = inner[field]
	}
	found, _ := value.(string)
	return found
}

const alreadyExists = "AlreadyExists"

func reasonOf(response *http.Response) string {
	content, err := bufferBody(response)
	var status map[string]any
	if err != nil || json.Unmarshal(content, &status) != nil {
		return ""
	}
	return text(status, "reason")
}

// messageOf returns the message of a Status, or else the whole text.
func messageOf(content []byte) string {
	var status map[string]any
	if json.Unmarshal(content, &status) == nil && text(status, "message") != "" {
		return text(status, "message")
	}
	return string(content)
}

func success() []byte {
	return []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`)
}

// replaced returns an answer of the API server with another code and body.
func replaced(like *http.Response, code int, body []byte) *http.Response {
	like.Body.Close()
	changed := *like
	changed.StatusCode, changed.Status = code, http.StatusText(code)
	changed.Header = like.Header.Clone()
	changed.Header.Set("Content-Type", "application/json")
	changed.Header.Del("Content-Length")
	changed.Body, changed.ContentLength, changed.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return &changed
}
