// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/lines"
)

// maxLog bounds a service's log, which has one earlier file, in bytes.
const maxLog = 4 << 20

type output struct {
	path, secret string

	mu    sync.Mutex
	file  *os.File
	size  int64
	split lines.Splitter
	last  string
}

func (o *output) open() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = ""
	if o.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.path), 0o775); err != nil {
		return err
	}
	file, err := claimfile.Append(o.path)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("opening the log %s: %w", o.path, err)
	}
	o.file, o.size = file, info.Size()
	return nil
}

// Write never fails: a full disk must not end the service.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.split.Each = o.line
	return o.split.Write(p)
}

func (o *output) line(line []byte) {
	text := string(line)
	if o.secret != "" {
		text = strings.ReplaceAll(text, o.secret, "...")
	}
	if trimmed := strings.TrimSpace(text); trimmed != "" {
		const shown = 200
		o.last = trimmed[:min(len(trimmed), shown)]
	}
	if o.size > maxLog {
		o.turn()
	}
	if o.file != nil {
		n, _ := o.file.WriteString(text)
		o.size += int64(n)
	}
}

// turn starts a new file and keeps the previous one.
func (o *output) turn() {
	_ = o.file.Close()
	o.file = nil
	if os.Rename(o.path, o.path+".old") != nil {
		return
	}
	if file, err := claimfile.Append(o.path); err == nil {
		o.file, o.size = file, 0
	}
}

func (o *output) lastLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// Close closes the file.
func (o *output) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_ = o.file.Close()
		o.file = nil
	}
}
