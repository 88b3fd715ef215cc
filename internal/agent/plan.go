// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// PlanTree sends a tree's manifest, in JSON, and reports whether the node has the whole tree. It calls missing for each content
// that the node misses, and returns its error; the node has begun bytes of the first one. It holds one content at a time, so a step can ask
// many nodes at once.
func (c *Client) PlanTree(ctx context.Context, hash tree.Digest, manifest []byte, missing func(tree.Digest) error) (
	present bool, begun int64, err error) {
	body, err := c.stream(ctx, http.MethodPost, "/v1/trees/"+string(hash), bytes.NewReader(manifest))
	if err != nil {
		return false, 0, err
	}
	defer body.Close()
	// The manifest has every content that the answer may have.
	answer := io.LimitReader(body, int64(len(manifest))+maxAnswer)
	present, begun, err = readPlan(answer, missing)
	if errors.As(err, new(planError)) {
		err = c.unreachable(fmt.Errorf("reading what the node misses of tree %s: %w", hash, err))
	}
	return present, begun, err
}

// planError is an error of the answer, not of the function that gets the contents.
type planError struct{ error }

func (e planError) Unwrap() error { return e.error }

func readPlan(answer io.Reader, missing func(tree.Digest) error) (present bool, begun int64, err error) {
	bound := &limitedReader{from: answer}
	tokens := json.NewDecoder(bound)
	for field, depth := "", 0; ; {
		bound.allow(maxToken)
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return false, 0, planError{err}
		}
		if depth == 0 && token != json.Delim('{') {
			return false, 0, planError{fmt.Errorf("it begins with %v: want an object", token)}
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '{' || token == '[' {
				depth++
			} else if depth--; depth == 0 {
				return present, begun, nil
			}
			if depth > 2 {
				return false, 0, planError{fmt.Errorf("field %q: want a list of contents", field)}
			}
		case bool:
			present = token
		case float64:
			if field == "begun" {
				begun = int64(token)
			}
		case string:
			if depth == 1 {
				field = token
			} else if err := missing(tree.Digest(token)); err != nil {
				return false, 0, err
			}
		}
	}
}
