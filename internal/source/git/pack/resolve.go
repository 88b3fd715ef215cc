package pack

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
)

// visitor is what a walk along the deltas does with each object.
type visitor struct {
	// enter says whether the object or one that builds on it is of interest.
	enter func(i int32) bool
	// content returns where the object's content goes.
	content func(i int32, size int64) (io.WriteCloser, error)
	// keep says whether deltas that build on the object may follow.
	keep func(i int32) bool
}

// resolve makes every delta once to learn its hash and size.
func (p *Pack) resolve(ctx context.Context) error {
	v := visitor{
		enter: func(int32) bool { return true },
		keep:  func(i int32) bool { return p.entries[i].child != none || len(p.orphans) > 0 },
		content: func(i int32, size int64) (io.WriteCloser, error) {
			return &namer{Hash: newHash(p.entries[i].kind, size), pack: p, entry: i, size: size}, nil
		},
	}
	var whole []int32
	for i := range p.entries {
		if p.entries[i].kind < offsetDelta {
			whole = append(whole, int32(i))
			p.adopt(int32(i))
		}
	}
	for _, i := range whole {
		if p.entries[i].child == none {
			continue
		}
		if err := p.descendFrom(ctx, i, v); err != nil {
			return err
		}
	}
	for base, deltas := range p.orphans {
		return fmt.Errorf("resolving %d deltas of object %s: %w", len(deltas), base, ErrMissing)
	}
	return nil
}

// adopt gives an object whose hash is known the deltas that name it by hash.
func (p *Pack) adopt(i int32) {
	h := p.entries[i].hash
	for _, orphan := range p.orphans[h] {
		p.entries[orphan].base = i
		p.entries[orphan].next, p.entries[i].child = p.entries[i].child, orphan
	}
	delete(p.orphans, h)
}

// descendFrom walks the deltas that build on a whole object.
func (p *Pack) descendFrom(ctx context.Context, i int32, v visitor) error {
	content, err := newSpool(p.entries[i].size, &p.memory, p.scratch)
	if err != nil {
		return err
	}
	defer content.close()
	if err := p.inflate.copyAt(content, p.file, p.entries[i].data, p.entries[i].size); err != nil {
		return err
	}
	return p.descend(ctx, i, content, v)
}

// descend walks the deltas that build on an object, depth first, so that only
// the contents of one chain are kept at a time.
func (p *Pack) descend(ctx context.Context, i int32, content *spool, v visitor) error {
	for child := p.entries[i].child; child != none; child = p.entries[child].next {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !v.enter(child) {
			continue
		}
		p.entries[child].kind = p.entries[i].kind
		if err := p.descendInto(ctx, child, content, v); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pack) descendInto(ctx context.Context, child int32, base *spool, v visitor) error {
	if err := p.openDelta(child); err != nil {
		return err
	}
	size := p.patch.result
	out, err := v.content(child, size)
	if err != nil {
		return err
	}
	if !v.keep(child) {
		return errors.Join(p.patch.apply(base.reader(), base.size, out), out.Close())
	}
	content, err := newSpool(size, &p.memory, p.scratch)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	defer content.close()
	err = p.patch.apply(base.reader(), base.size, io.MultiWriter(out, content))
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return p.descend(ctx, child, content, v)
}

// openDelta makes an entry's delta the one to apply next.
func (p *Pack) openDelta(i int32) error {
	stream, err := p.inflate.openAt(p.file, p.entries[i].data)
	if err != nil {
		return err
	}
	return p.patch.open(stream)
}

// namer gives an entry the hash of what was written, when closed.
type namer struct {
	hash.Hash
	pack  *Pack
	entry int32
	size  int64
}

func (n *namer) Close() error {
	e := &n.pack.entries[n.entry]
	e.size = n.size
	n.Sum(e.hash[:0])
	n.pack.adopt(n.entry)
	return nil
}
