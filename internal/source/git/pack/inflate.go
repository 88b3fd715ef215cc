package pack

import (
	"bufio"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
)

// inflater reads zlib streams one after the other with the same buffers.
type inflater struct {
	zlib   io.ReadCloser
	file   *bufio.Reader
	buffer []byte
}

// open starts a stream. It takes no byte more than the stream has, as in is an
// io.ByteReader.
func (f *inflater) open(in *bufio.Reader) (io.Reader, error) {
	if f.zlib == nil {
		var err error
		if f.zlib, err = zlib.NewReader(in); err != nil {
			f.zlib = nil
			return nil, err
		}
		return f.zlib, nil
	}
	return f.zlib, f.zlib.(zlib.Resetter).Reset(in, nil)
}

// openAt starts the stream at an offset of a file.
func (f *inflater) openAt(file io.ReaderAt, offset int64) (io.Reader, error) {
	const toTheEnd = 1 << 62
	section := io.NewSectionReader(file, offset, toTheEnd)
	if f.file == nil {
		f.file = bufio.NewReaderSize(section, 64<<10)
	}
	f.file.Reset(section)
	return f.open(f.file)
}

// copy writes a whole stream, which must have that many bytes.
func (f *inflater) copy(to io.Writer, in *bufio.Reader, size int64) error {
	stream, err := f.open(in)
	if err != nil {
		return err
	}
	return f.drain(to, stream, size)
}

// copyAt is copy from an offset of a file.
func (f *inflater) copyAt(to io.Writer, file io.ReaderAt, offset, size int64) error {
	stream, err := f.openAt(file, offset)
	if err != nil {
		return err
	}
	return f.drain(to, stream, size)
}

func (f *inflater) drain(to io.Writer, stream io.Reader, size int64) error {
	if f.buffer == nil {
		f.buffer = make([]byte, 64<<10)
	}
	// One byte more than there should be makes zlib read its checksum.
	n, err := io.CopyBuffer(onlyWriter{to}, io.LimitReader(stream, size+1), f.buffer)
	if err != nil {
		return whole(err)
	}
	if n != size {
		return fmt.Errorf("inflating an object: %d bytes or more: want %d", n, size)
	}
	return nil
}

// onlyWriter hides ReadFrom, which would bring a buffer of its own.
type onlyWriter struct{ io.Writer }
