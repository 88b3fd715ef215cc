package pack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// patcher makes objects of deltas, one after the other with the same buffers.
type patcher struct {
	in     *bufio.Reader
	out    *bufio.Writer
	buffer []byte
	// base and result are the sizes in bytes that the opened delta begins with.
	base, result int64
}

// open begins with a delta by reading its two sizes.
func (p *patcher) open(stream io.Reader) error {
	if p.in == nil {
		p.in, p.out = bufio.NewReaderSize(nil, 16<<10), bufio.NewWriterSize(nil, 64<<10)
		p.buffer = make([]byte, 64<<10)
	}
	p.in.Reset(stream)
	for _, size := range []*int64{&p.base, &p.result} {
		n, err := binary.ReadUvarint(p.in)
		if err != nil {
			return whole(err)
		}
		if int64(n) < 0 {
			return fmt.Errorf("reading a delta: size %d: want less than 2^63", n)
		}
		*size = int64(n)
	}
	return nil
}

// apply writes the object that the opened delta makes of its base.
func (p *patcher) apply(base io.ReaderAt, size int64, to io.Writer) error {
	if p.base != size {
		return fmt.Errorf("applying a delta: made for a base of %d bytes: got one of %d", p.base, size)
	}
	p.out.Reset(to)
	for left := p.result; left > 0; {
		n, err := p.step(base, size, left)
		if err != nil {
			return fmt.Errorf("applying a delta: %w", whole(err))
		}
		left -= n
	}
	// The end of the stream makes zlib compare its checksum.
	if _, err := p.in.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("applying a delta: more instructions than for %d bytes: %w", p.result, err)
	}
	return p.out.Flush()
}

// step carries one instruction out and returns how many bytes it wrote, at most left.
func (p *patcher) step(base io.ReaderAt, size, left int64) (int64, error) {
	op, err := p.in.ReadByte()
	if err != nil {
		return 0, err
	}
	if op&0x80 == 0 {
		length := int64(op)
		if length == 0 || length > left {
			return 0, fmt.Errorf("inserting %d bytes: want 1 to %d", length, left)
		}
		if _, err := io.ReadFull(p.in, p.buffer[:length]); err != nil {
			return 0, err
		}
		_, err := p.out.Write(p.buffer[:length])
		return length, err
	}
	offset, length, err := p.readCopy(op)
	if err != nil {
		return 0, err
	}
	if length > left || offset+length > size {
		return 0, fmt.Errorf("copying bytes %d to %d of %d: want at most %d bytes", offset, offset+length, size, left)
	}
	for done := int64(0); done < length; {
		part := p.buffer[:min(length-done, int64(len(p.buffer)))]
		if n, err := base.ReadAt(part, offset+done); n < len(part) {
			return 0, err
		}
		if _, err := p.out.Write(part); err != nil {
			return 0, err
		}
		done += int64(len(part))
	}
	return length, nil
}

// readCopy reads the offset and the length of a copy; op's bits say which of
// their bytes are there.
func (p *patcher) readCopy(op byte) (offset, length int64, err error) {
	var value [7]byte
	for bit := range value {
		if op&(1<<bit) == 0 {
			continue
		}
		if value[bit], err = p.in.ReadByte(); err != nil {
			return 0, 0, err
		}
	}
	offset = int64(binary.LittleEndian.Uint32(value[:4]))
	length = int64(value[4]) | int64(value[5])<<8 | int64(value[6])<<16
	if length == 0 {
		length = 1 << 16
	}
	return offset, length, nil
}
