package git

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// mark is what ends a part of a conversation.
type mark int

const (
	line  mark = iota // no mark: a line with content
	flush             // the end of a message
	delim             // the end of a section
	end               // the end of an answer
)

// maxLine is the longest pkt-line's content, in bytes.
const maxLine = 65516

// lineReader reads git's pkt-lines: each begins with its length in four hex digits.
type lineReader struct {
	in      *bufio.Reader
	content [maxLine]byte
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 64<<10)}
}

// serverError is what the server says was wrong.
type serverError struct{ text string }

func (e *serverError) Error() string { return "the server says: " + e.text }

// next returns a line's content, good until the next call.
func (r *lineReader) next() (mark, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return line, nil, err
	}
	var length [2]byte
	if _, err := hex.Decode(length[:], head[:]); err != nil {
		return line, nil, fmt.Errorf("reading the server's answer: %q: want a line of git's protocol", head)
	}
	switch n := int(length[0])<<8 | int(length[1]); {
	case n == 0:
		return flush, nil, nil
	case n == 1:
		return delim, nil, nil
	case n == 2:
		return end, nil, nil
	case n < 4 || n-4 > maxLine:
		return line, nil, fmt.Errorf("reading the server's answer: a line of %d bytes: want 4 to %d", n, maxLine+4)
	default:
		content := r.content[:n-4]
		if _, err := io.ReadFull(r.in, content); err != nil {
			return line, nil, unexpected(err)
		}
		return line, content, nil
	}
}

// text is next for lines of text: without the newline, errors made errors.
func (r *lineReader) text() (mark, string, error) {
	m, content, err := r.next()
	if err != nil {
		return m, "", err
	}
	text := strings.TrimSuffix(string(content), "\n")
	if said, ok := strings.CutPrefix(text, "ERR "); ok {
		return m, "", &serverError{said}
	}
	return m, text, nil
}

// request is a message in the making.
type request struct{ bytes.Buffer }

func (r *request) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(r, "%04x%s", len(text)+4, text)
}

func (r *request) flush() { r.WriteString("0000") }
func (r *request) delim() { r.WriteString("0001") }

// demultiplexer reads the pack out of the lines that carry it beside messages.
type demultiplexer struct {
	in   *lineReader
	rest []byte
	done bool
}

func (d *demultiplexer) Read(b []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.done {
			return 0, io.EOF
		}
		m, content, err := d.in.next()
		if err != nil {
			return 0, unexpected(err)
		}
		if m != line {
			d.done = true
			continue
		}
		if len(content) == 0 {
			continue
		}
		const pack, progress, failure = 1, 2, 3
		switch content[0] {
		case pack:
			d.rest = content[1:]
		case progress:
		case failure:
			return 0, &serverError{string(content[1:])}
		default:
			return 0, fmt.Errorf("reading the server's answer: channel %d: want 1 to 3", content[0])
		}
	}
	n := copy(b, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// unexpected makes an end inside something no normal end.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // an end that is wrapped already says where it was
		return io.ErrUnexpectedEOF
	}
	return err
}
