package pack

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// scan reads the stream once: it keeps a copy on disk, finds where the entries
// are, and hashes those that are no deltas.
func (p *Pack) scan(ctx context.Context, stream io.Reader, progress func(done, total int)) error {
	in := &scanner{from: stream, to: p.file}
	in.buffered = bufio.NewReaderSize(in, 64<<10)
	var header [12]byte
	if _, err := io.ReadFull(in.buffered, header[:]); err != nil {
		return fmt.Errorf("reading pack header: %w", whole(err))
	}
	if version := binary.BigEndian.Uint32(header[4:]); string(header[:4]) != "PACK" || version != 2 && version != 3 {
		return fmt.Errorf("reading pack header: %q: want PACK version 2 or 3", header)
	}
	count := binary.BigEndian.Uint32(header[8:])
	if count > math.MaxInt32 {
		return fmt.Errorf("reading pack header: %d objects: want at most %d", count, math.MaxInt32)
	}
	for i := range int(count) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.scanEntry(in); err != nil {
			return fmt.Errorf("reading pack, object %d of %d: %w", i+1, count, whole(err))
		}
		progress(i+1, int(count))
	}
	// The trailer is a checksum of the pack. Each object that is used was asked
	// for by its own hash, so that the checksum would show nothing new.
	if _, err := io.CopyN(io.Discard, in.buffered, 20); err != nil {
		return fmt.Errorf("reading pack trailer: %w", whole(err))
	}
	if _, err := io.Copy(io.Discard, in.buffered); err != nil {
		return fmt.Errorf("reading pack: %w", err)
	}
	return nil
}

// whole makes an end inside a pack what it is: not the normal end of a stream.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *Pack) scanEntry(in *scanner) error {
	e := entry{start: in.offset(), base: none, child: none, next: none}
	kind, size, err := readHeader(in.buffered)
	if err != nil {
		return err
	}
	e.kind, e.size = kind, size
	index := int32(len(p.entries))
	switch kind {
	case Commit, Tree, Blob, Tag:
		e.data = in.offset()
		h := newHash(kind, size)
		if err := p.inflate.copy(h, in.buffered, size); err != nil {
			return err
		}
		h.Sum(e.hash[:0])
		p.entries = append(p.entries, e)
		return nil
	case offsetDelta:
		distance, err := readDistance(in.buffered)
		if err != nil {
			return err
		}
		base, ok := p.at(e.start - distance)
		if !ok {
			return fmt.Errorf("delta of an object %d bytes before it: want one that is there", distance)
		}
		e.base = base
		e.next, p.entries[base].child = p.entries[base].child, index
	case hashDelta:
		var base Hash
		if _, err := io.ReadFull(in.buffered, base[:]); err != nil {
			return err
		}
		p.orphans[base] = append(p.orphans[base], index)
	default:
		return fmt.Errorf("%s: want commit, tree, blob, tag or delta", kind)
	}
	e.data = in.offset()
	p.entries = append(p.entries, e)
	return p.inflate.copy(io.Discard, in.buffered, size)
}

// readHeader reads an entry's kind and its size.
func readHeader(r io.ByteReader) (Kind, int64, error) {
	b, err := r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size := Kind(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = r.ReadByte(); err != nil {
			return 0, 0, err
		}
		if shift > 53 {
			return 0, 0, errors.New("size of an object: more than 60 bits")
		}
		size |= int64(b&0x7f) << shift
	}
	return kind, size, nil
}

// readDistance reads how far back a delta's base is. Each further byte counts
// one more, so that no distance has two spellings.
func readDistance(r io.ByteReader) (int64, error) {
	b, err := r.ReadByte()
	if err != nil {
		return 0, err
	}
	distance := int64(b & 0x7f)
	for b&0x80 != 0 {
		if b, err = r.ReadByte(); err != nil {
			return 0, err
		}
		if distance > math.MaxInt64>>8 {
			return 0, errors.New("distance of a delta: more than 63 bits")
		}
		distance = (distance+1)<<7 | int64(b&0x7f)
	}
	return distance, nil
}

// scanner copies what it reads and knows how much of it was consumed.
type scanner struct {
	from     io.Reader
	to       io.Writer
	read     int64
	buffered *bufio.Reader
}

func (s *scanner) Read(b []byte) (int, error) {
	n, err := s.from.Read(b)
	if _, failed := s.to.Write(b[:n]); failed != nil {
		return 0, failed
	}
	s.read += int64(n)
	return n, err
}

func (s *scanner) offset() int64 { return s.read - int64(s.buffered.Buffered()) }
