// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// idTokens are the bearer tokens of requests: GitHub's ID tokens, which expire after minutes, whatever the time of a run.
type idTokens struct {
	// ask asks GitHub for a token; mask hides it in the job's log.
	ask  func(ctx context.Context) (string, error)
	mask func(token string)
	now  func() time.Time

	mu      sync.Mutex
	token   string
	expires time.Time
}

// spare is how long before its end a token is replaced: the clocks of GitHub and of the API server may differ.
const spare = time.Minute

// current returns a token that is still valid for some time.
func (t *idTokens) current(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != "" && t.now().Before(t.expires.Add(-spare)) {
		return t.token, nil
	}
	var problem error
	var token string
	halfAMinute := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 6}
	err := wait.ExponentialBackoffWithContext(ctx, halfAMinute, func(ctx context.Context) (bool, error) {
		token, problem = t.ask(ctx)
		return problem == nil, nil
	})
	if err != nil {
		if t.token != "" && t.now().Before(t.expires) {
			return t.token, nil
		}
		if problem != nil {
			err = problem
		}
		return "", fail.Because(fail.PermissionDenied, fmt.Errorf("asking GitHub for an ID token: %w", err))
	}
	t.mask(token)
	t.token, t.expires = token, expiryOf(token, t.now())
	return token, nil
}

// drop forgets a token that the API server refuses.
func (t *idTokens) drop(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token = ""
	}
}

// expiryOf returns when a JWT expires. One that does not show it is used for a short time.
func expiryOf(token string, now time.Time) time.Time {
	var claims struct {
		Exp int64 `json:"exp"`
	}
	parts := strings.Split(token, ".")
	if len(parts) == 3 {
		if payload, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(payload, &claims) == nil && claims.Exp > 0 {
			return time.Unix(claims.Exp, 0)
		}
	}
	return now.Add(2 * spare)
}

// wrap gives each request a token.
func (t *idTokens) wrap(next http.RoundTripper) http.RoundTripper { return &withIDToken{t, next} }

type withIDToken struct {
	tokens *idTokens
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w *withIDToken) RoundTrip(request *http.Request) (*http.Response, error) {
	token, err := w.tokens.current(request.Context())
	if err != nil {
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := w.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		w.tokens.drop(token)
	}
	return response, err
}
