package pack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
)

// MaxRead is the size in bytes up to which objects can be read into memory.
const MaxRead = 32 << 20

// maxTrees bounds what is remembered of objects that were read, in bytes.
const maxTrees = 16 << 20

// Read returns an object of that kind, whole. The caller must not change it.
func (p *Pack) Read(h Hash, kind Kind) ([]byte, error) {
	i, err := p.find(h)
	if err != nil {
		return nil, err
	}
	if p.entries[i].kind != kind {
		return nil, fmt.Errorf("reading object %s: it is a %s: want a %s", h, p.entries[i].kind, kind)
	}
	content, err := p.read(i)
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", kind, h, err)
	}
	return content, nil
}

func (p *Pack) read(i int32) ([]byte, error) {
	if content, ok := p.trees[i]; ok {
		return content, nil
	}
	e := &p.entries[i]
	if e.size > MaxRead {
		return nil, fmt.Errorf("%d bytes: want at most %d", e.size, MaxRead)
	}
	var out bytes.Buffer
	if e.base == none {
		out.Grow(int(e.size))
		if err := p.inflate.copyAt(&out, p.file, e.data, e.size); err != nil {
			return nil, err
		}
	} else {
		base, err := p.read(e.base)
		if err != nil {
			return nil, err
		}
		if err := p.openDelta(i); err != nil {
			return nil, err
		}
		out.Grow(int(e.size))
		if err := p.patch.apply(bytes.NewReader(base), int64(len(base)), &out); err != nil {
			return nil, err
		}
	}
	p.remember(i, out.Bytes())
	return out.Bytes(), nil
}

func (p *Pack) remember(i int32, content []byte) {
	if p.treeBytes+len(content) > maxTrees {
		clear(p.trees)
		p.treeBytes = 0
	}
	p.trees[i] = content
	p.treeBytes += len(content)
}

// Extract writes the contents of blobs, in the order that suits the pack. Each
// object is written once, to what create returns for it, which is then closed.
func (p *Pack) Extract(ctx context.Context, blobs []Hash, create func(Hash) (io.WriteCloser, error)) error {
	wanted := make([]bool, len(p.entries))
	needed := make([]bool, len(p.entries)) // also the bases of what is wanted
	var roots []int32
	for _, h := range blobs {
		i, err := p.find(h)
		if err != nil {
			return err
		}
		if p.entries[i].kind != Blob {
			return fmt.Errorf("extracting object %s: it is a %s: want a blob", h, p.entries[i].kind)
		}
		wanted[i] = true
		for ; i != none && !needed[i]; i = p.entries[i].base {
			needed[i] = true
			if p.entries[i].base == none {
				roots = append(roots, i)
			}
		}
	}
	slices.Sort(roots)
	v := visitor{
		enter: func(i int32) bool { return needed[i] },
		keep:  func(i int32) bool { return p.anyChild(i, needed) },
		content: func(i int32, _ int64) (io.WriteCloser, error) {
			if !wanted[i] {
				return nowhere{}, nil
			}
			return create(p.entries[i].hash)
		},
	}
	for _, i := range roots {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if wanted[i] {
			if err := p.extract(i, create); err != nil {
				return err
			}
		}
		if v.keep(i) {
			if err := p.descendFrom(ctx, i, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// extract streams a whole object.
func (p *Pack) extract(i int32, create func(Hash) (io.WriteCloser, error)) error {
	out, err := create(p.entries[i].hash)
	if err != nil {
		return err
	}
	err = p.inflate.copyAt(out, p.file, p.entries[i].data, p.entries[i].size)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

func (p *Pack) anyChild(i int32, needed []bool) bool {
	for child := p.entries[i].child; child != none; child = p.entries[child].next {
		if needed[child] {
			return true
		}
	}
	return false
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Close() error                { return nil }
