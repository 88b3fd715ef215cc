// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// VolumeTry is the body of POST /v1/volumes/lock, hold, rename and clear: the parts of a check whether what programs need of a claim
// that several nodes mount works between them.
type VolumeTry struct {
	// Path is Workspace or Datasets.
	Path string `json:"path"`
	// Check names the check, by the same random text on all nodes.
	Check string `json:"check"`
}

var checkName = regexp.MustCompile(`^[A-Z2-7]{16,64}$`)

// Validate returns an error of reason InvalidInput unless both fields are what they must be.
func (t VolumeTry) Validate() error {
	if (t.Path == Workspace || t.Path == Datasets) && checkName.MatchString(t.Check) {
		return nil
	}
	return fail.Because(fail.InvalidInput, fmt.Errorf("trying %q, check %q: want %s or %s, and random text", t.Path, t.Check, Workspace,
		Datasets))
}

// VolumeAnswer is what a node saw.
type VolumeAnswer struct {
	// Locked is true if the node got the lock.
	Locked bool `json:"locked,omitempty"`
	// Problem is what does not work, "" for nothing.
	Problem string `json:"problem,omitempty"`
	// Unwritable is why nothing can be tried, as on a volume that is mounted read-only.
	Unwritable string `json:"unwritable,omitempty"`
}

// HoldLimit is how long an agent holds the lock of a check at most.
const HoldLimit = time.Minute

// HoldLock has the node take the lock of a check and hold it until release is called, at most for HoldLimit. Without the lock release
// does nothing.
func (c *Client) HoldLock(ctx context.Context, try VolumeTry) (answer VolumeAnswer, release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	body, err := c.stream(ctx, http.MethodPost, "/v1/volumes/hold", try)
	if err != nil {
		cancel()
		return answer, nil, err
	}
	release = func() {
		cancel()
		body.Close()
	}
	if err := json.NewDecoder((&limitedReader{from: body}).allow(maxBytes(&answer))).Decode(&answer); err != nil {
		release()
		if errors.Is(ctx.Err(), context.Canceled) {
			return answer, nil, ctx.Err()
		}
		return answer, nil, c.unreachable(err)
	}
	return answer, release, nil
}

// TryLock has the node take the lock without waiting, and release it at once.
func (c *Client) TryLock(ctx context.Context, try VolumeTry) (VolumeAnswer, error) {
	return ask[VolumeAnswer](ctx, c, http.MethodPost, "/v1/volumes/lock", try)
}

// TryRename has the node replace a file by others again and again, while other nodes do so too, and read it.
func (c *Client) TryRename(ctx context.Context, try VolumeTry) (VolumeAnswer, error) {
	return ask[VolumeAnswer](ctx, c, http.MethodPost, "/v1/volumes/rename", try)
}

// ClearTry removes the files of a check.
func (c *Client) ClearTry(ctx context.Context, try VolumeTry) error {
	return c.call(ctx, http.MethodPost, "/v1/volumes/clear", try, nil)
}

// Caches is the body of PUT /v1/caches: where caches are that programs such as Hugging Face's protect by locks on files.
type Caches struct {
	// OnNode is true for the node's own storage, and false for the claim.
	OnNode bool `json:"onNode"`
	// Why is the reason for the node's own storage.
	Why string `json:"why,omitempty"`
}

// SetCaches moves the caches of everything that the node starts from now on.
func (c *Client) SetCaches(ctx context.Context, caches Caches) error {
	return c.call(ctx, http.MethodPut, "/v1/caches", caches, nil)
}
