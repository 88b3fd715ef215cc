// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"

	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// limitedReader passes JSON on until it has too many bytes, or too many objects and lists: a short text of empty objects becomes
// structures of a hundred times its size.
type limitedReader struct {
	from io.Reader
	// bytes and objects may still come.
	bytes, objects int
	// most is what allow has set.
	most int
	// inString and escaped are where in the JSON the text so far ends.
	inString, escaped bool
}

// bytesPerObject is what an object or list of a longer answer has at least, on average.
const bytesPerObject = 32

// allow lets so many bytes more pass, whatever came before.
func (b *limitedReader) allow(bytes int) *limitedReader {
	b.most, b.bytes, b.objects = bytes, bytes, bytes/bytesPerObject
	return b
}

func (b *limitedReader) Read(p []byte) (int, error) {
	if b.bytes <= 0 {
		return 0, fmt.Errorf("it has more than %d bytes", b.most)
	}
	n, err := b.from.Read(p[:min(len(p), b.bytes)])
	b.bytes -= n
	for _, c := range p[:n] {
		switch {
		case b.escaped:
			b.escaped = false
		case b.inString && c == '\\':
			b.escaped = true
		case c == '"':
			b.inString = !b.inString
		case !b.inString && (c == '{' || c == '['):
			b.objects--
		}
	}
	if b.objects < 0 {
		return 0, fmt.Errorf("it has more than %d objects and lists", b.most/bytesPerObject)
	}
	return n, err
}

// The bounds of answers, in bytes. The training can forge answers, and a step reads the answers of all nodes at the same time.
const (
	// maxAnswer is for what describes a node.
	maxAnswer = 1 << 20
	// maxTable is for GIDs of many virtual functions, or the addresses of all nodes.
	maxTable = 4 << 20
	// maxStatus is for a job's specification and the last words, or the stacks, of all ranks of a node.
	maxStatus = 8 << 20
	// maxToken is for one value of a list that is read value by value.
	maxToken = 64 << 10
)

// maxBytes returns the bound of an answer by its kind.
func maxBytes(answer any) int {
	switch answer.(type) {
	case *JobStatus, *[]RankActivity:
		return maxStatus
	case *rdma.Facts, *Resolution:
		return maxTable
	}
	return maxAnswer
}
