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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
)

// Dir is the folder with the memory of a run on the user's own machine: a file for each key of the ConfigMap that a run on a cluster has.
type Dir string

// Begin writes what is known of a run when it starts.
func (d Dir) Begin(s Start) error {
	content, err := json.Marshal(s)
	return d.write(startKey, content, err)
}

// Keeper begins the part of a step.
func (d Dir) Keeper(ctx context.Context, log *slog.Logger, s Start, task string) *Keeper {
	k := &Keeper{clients: &kube.Clients{}, log: log, start: s, dir: d, unhook: func() bool { return true }}
	k.part = Part{Task: task, Status: run.Running, Started: time.Now().UTC()}
	k.Learn(ctx, func(*Part) {})
	return k
}

func (d Dir) note(s Start, p Part) error {
	p.RunUID = s.RunUID
	content, err := p.encode()
	return d.write(partPrefix+p.Task+partSuffix, content, err)
}

func (d Dir) noteProgress(s Start, p Progress) error {
	p.RunUID = s.RunUID
	content, err := json.Marshal(p)
	return d.write(progressKey, content, err)
}

// Write stores the receipt.
func (d Dir) Write(r Receipt) error {
	content, err := encode(r)
	return d.write(key, content, err)
}

// write replaces a file, unless its content could not be encoded.
func (d Dir) write(name string, content []byte, err error) error {
	if err == nil {
		err = claimfile.Replace(filepath.Join(string(d), name), string(d), content)
	}
	if err != nil {
		return fmt.Errorf("writing %s of the receipt: %w", name, err)
	}
	return nil
}

// Recall reads the memory of the run of that name. Reason of one that is not valid: InvalidInput.
func (d Dir) Recall(name string) (Memory, error) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name(name)}, Data: map[string]string{}}
	if info, err := os.Stat(string(d)); err == nil {
		config.CreationTimestamp = metav1.NewTime(info.ModTime())
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return Memory{}, fmt.Errorf("reading the receipt of %s: %w", name, err)
	}
	for _, entry := range entries {
		file := entry.Name()
		isPart := strings.HasPrefix(file, partPrefix) && strings.HasSuffix(file, partSuffix)
		if !isPart && file != startKey && file != progressKey && file != key {
			continue
		}
		content, err := claimfile.Read(filepath.Join(string(d), file), maxSize+maxPart)
		if err != nil {
			return Memory{}, fmt.Errorf("reading the receipt of %s: %w", name, err)
		}
		config.Data[file] = string(content)
	}
	return recall(config)
}
