// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package local

import (
	"context"
	"errors"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
)

// Running is false: no run is on another system than Linux.
func (r Run) Running() bool { return false }

// Checkpoint finds none.
func (r Run) Checkpoint(context.Context, int) (path string, err error) { return "", nil }

// Connect returns an error.
func (r Run) Connect() (nodes.Set, error) { return nil, errors.ErrUnsupported }

func (r Run) lock() (unlock func(), err error) { return nil, errors.ErrUnsupported }
