// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// BenchmarkSend sends 20 MB in 2,000 files, and then one changed file, to four agents on the same machine as the step.
func BenchmarkSend(b *testing.B) {
	for _, kind := range []string{"text", "binary"} {
		agents := agenttest.Start(b, 4)
		dir, seed := filepath.Join(b.TempDir(), kind), uint64(0)
		writeFiles(b, dir, seed, kind == "text")
		b.Run(kind+"/whole", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				seed++
				writeFiles(b, dir, seed, kind == "text")
				b.StartTimer()
				if _, err := sendDir(b.Context(), quiet(), setOf(agents), dir); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(kind+"/one file", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if err := os.WriteFile(filepath.Join(dir, "package-3/module-33.py"), fmt.Append(nil, "changed ", i, seed), 0o644); err != nil {
					b.Fatal(err)
				}
				if _, err := sendDir(b.Context(), quiet(), setOf(agents), dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// writeFiles writes files that all differ. Their content is text that compresses like source, or bytes that do not
// compress.
func writeFiles(b *testing.B, dir string, seed uint64, text bool) {
	random := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("def return self import torch tensor for in range if else None True False model loss batch size rank step = + ( " +
		") [ ] : , . config data")
	const files, folders, size = 2000, 20, 10_000
	for i := range files {
		folder := filepath.Join(dir, fmt.Sprint("package-", i%folders))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			b.Fatal(err)
		}
		var content bytes.Buffer
		for content.Len() < size {
			switch {
			case !text:
				content.WriteByte(byte(random.Uint32()))
			case random.IntN(8) == 0:
				fmt.Fprintf(&content, "name_%x\n", random.Uint32())
			default:
				content.WriteString(words[random.IntN(len(words))] + " ")
			}
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("module-%d.py", i/folders)), content.Bytes()[:size], 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
