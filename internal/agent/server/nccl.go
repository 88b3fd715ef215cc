// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/record"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma/nccl"
)

// maxNCCLLogs bounds the files: one for each rank, and some for its children.
const maxNCCLLogs = 256

type ncclLogs struct {
	prefix string
	// locksAny is true if ranks may lock any amount of memory.
	locksAny bool

	mu    sync.Mutex
	files map[string]*ncclLog
	ended bool
}

// ncclLog is one of them, read up to its file's offset.
type ncclLog struct {
	file   *os.File
	reader *nccl.Reader
}

func newNCCLLogs(dir record.Dir, node int, memory rdma.Memlock) *ncclLogs {
	return &ncclLogs{prefix: dir.NCCLLogs(node), locksAny: memory.MaxLockable() == rdma.Unlimited, files: map[string]*ncclLog{}}
}

func (n *ncclLogs) has(path string) bool { return strings.HasPrefix(path, n.prefix) }

func (n *ncclLogs) read(path string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return nil
	}
	log, known := n.files[path]
	if !known {
		if len(n.files) == maxNCCLLogs {
			return nil
		}
		file, err := claimfile.Open(path)
		if err != nil {
			return fmt.Errorf("reading NCCL's log: %w", err)
		}
		log = &ncclLog{file: file, reader: nccl.NewReader()}
		log.reader.LocksAny = n.locksAny
		n.files[path] = log
	}
	if _, err := io.Copy(log.reader, log.file); err != nil {
		return fmt.Errorf("reading NCCL's log: %w", err)
	}
	return nil
}

func (n *ncclLogs) summary() *nccl.Summary {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.files) == 0 {
		return nil
	}
	var all []nccl.Summary
	for _, log := range n.files {
		all = append(all, log.reader.Summary())
	}
	slices.SortFunc(all, func(a, b nccl.Summary) int { return strings.Compare(a.String(), b.String()) })
	summary := nccl.Merge(all...)
	return &summary
}

func (n *ncclLogs) end() error {
	paths, err := filepath.Glob(n.prefix + "*")
	for _, path := range paths {
		err = errors.Join(err, n.read(path))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for _, log := range n.files {
		err = errors.Join(err, log.reader.Close(), log.file.Close())
	}
	return err
}
