// SPDX-License-Identifier: Apache-2.0

package receipt

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
)

// Dir is the folder with the journal of a run on the user's own machine: a file for each key of the ConfigMap that a run on a cluster has.
type Dir string

// LocalJournal is the journal of a run on the user's own machine, in the mlenv that runs it. The files in its folder are a copy for other
// commands and for later, so a full disk changes no verdict. The room for the receipt is taken when the run starts.
type LocalJournal struct {
	dir   Dir
	start Start
	room  *claimfile.Reservation

	mu sync.Mutex
	// files are what the folder has, unless it could not be written.
	files map[string]string
}

// BeginJournal begins the journal of a run, and takes the room for its receipt.
func (d Dir) BeginJournal(s Start) (*LocalJournal, error) {
	room, err := claimfile.Reserve(filepath.Join(string(d), key), "end", maxSize)
	if err != nil {
		return nil, fmt.Errorf("taking room for the receipt of run %s: %w", s.Run, err)
	}
	h := &LocalJournal{dir: d, start: s, room: room, files: map[string]string{}}
	content, err := json.Marshal(s)
	if err != nil {
		return h, err
	}
	return h, h.put(context.Background(), startKey, content)
}

// Writer begins the entry of a step.
func (h *LocalJournal) Writer(ctx context.Context, log *slog.Logger, task string) *Writer {
	k := h.start.writer(h, time.Now, log, task)
	k.Update(ctx, func(*Entry) {})
	return k
}

// Read returns what the steps have noted.
func (h *LocalJournal) Read() (Journal, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name(h.start.Run)}, Data: h.files}
	return parseJournal(config)
}

// Write stores the receipt, once.
func (h *LocalJournal) Write(r Receipt) error {
	content, err := encode(r)
	if err == nil {
		err = h.room.Replace(content)
	}
	return written(key, err)
}

func (h *LocalJournal) put(_ context.Context, name string, content []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[name] = string(content)
	return written(name, h.dir.replace(name, content))
}

// Write stores the receipt of a run whose mlenv has ended.
func (d Dir) Write(r Receipt) error {
	content, err := encode(r)
	if err == nil {
		err = d.replace(key, content)
	}
	return written(key, err)
}

func (d Dir) replace(name string, content []byte) error {
	return claimfile.Replace(filepath.Join(string(d), name), string(d), content)
}

func written(name string, err error) error {
	if err != nil {
		return fmt.Errorf("writing %s of the receipt: %w", name, err)
	}
	return nil
}

// Read reads the journal of the run of that name. Reason of one that is not valid: InvalidInput.
func (d Dir) Read(name string) (Journal, error) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name(name)}, Data: map[string]string{}}
	if info, err := os.Stat(string(d)); err == nil {
		config.CreationTimestamp = metav1.NewTime(info.ModTime())
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return Journal{}, fmt.Errorf("reading the receipt of %s: %w", name, err)
	}
	for _, entry := range entries {
		file := entry.Name()
		isPart := strings.HasPrefix(file, entryPrefix) && strings.HasSuffix(file, entrySuffix)
		if !isPart && file != startKey && file != progressKey && file != key {
			continue
		}
		content, err := claimfile.Read(filepath.Join(string(d), file), maxSize+maxEntry)
		if err != nil {
			return Journal{}, fmt.Errorf("reading the receipt of %s: %w", name, err)
		}
		config.Data[file] = string(content)
	}
	return parseJournal(config)
}
