// SPDX-License-Identifier: Apache-2.0

package treestore

import (
	"bytes"
	"fmt"
	"io"
	"testing"
)

// BenchmarkReceive measures the first sync of 2,000 files and 20 MB.
func BenchmarkReceive(b *testing.B) {
	dir, m := manyFiles(b)
	_, missing, err := newWorkspace(b).Plan(m, m.Hash())
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(stream(b, dir, m, missing))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		w := newWorkspace(b)
		if _, _, err := w.Plan(m, m.Hash()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := w.Receive(b.Context(), m.Hash(), 0, bytes.NewReader(body)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkResync measures plan, transfer and switch after one of 2,000 files has changed.
func BenchmarkResync(b *testing.B) {
	dir, m := manyFiles(b)
	w := newWorkspace(b)
	hash, _ := receive(b, w.Store, dir, m)
	if err := w.Switch(hash, ""); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		write(b, dir, "package07/module7.py", fmt.Sprint("change ", i))
		m := scan(b, dir)
		b.StartTimer()
		hash, sent := receive(b, w.Store, dir, m)
		if sent != 1 {
			b.Fatalf("%d contents were sent", sent)
		}
		if err := w.Switch(hash, ""); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, err := w.Collect(5, nobody); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkPlanOfPresent measures a sync without a change.
func BenchmarkPlanOfPresent(b *testing.B) {
	dir, m := manyFiles(b)
	w := newWorkspace(b)
	receive(b, w.Store, dir, m)
	for b.Loop() {
		if present, _, err := w.Plan(m, m.Hash()); !present || err != nil {
			b.Fatal(present, err)
		}
	}
}

// BenchmarkLay lays the working directory of a job, 2,000 files and 20 MB, and cleans it.
func BenchmarkLay(b *testing.B) {
	w := newWorkspace(b)
	dir, m := manyFiles(b)
	hash, _ := receive(b, w.Store, dir, m)
	for b.Loop() {
		if _, err := w.CreateWork(hash, "job", "node"); err != nil {
			b.Fatal(err)
		}
		if err := w.LeaveWork("job", "node"); err != nil {
			b.Fatal(err)
		}
	}
}
