package tree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// window is how far zstd looks back, in bytes. It bounds the memory of both ends.
const window = 1 << 20

// WriteContents sends contents of the tree at dir as one zstd stream: before each
// content go the 32 bytes of its SHA-256; its size is in the manifest. The reader
// so needs not know in which order, or what exactly, was asked for.
//
// A file that is no longer as the manifest has it is SyncFailed. The stream is
// then left without an end, so that no reader takes it for whole.
func WriteContents(ctx context.Context, w io.Writer, dir string, m Manifest, missing []Digest) error {
	root, err := os.OpenRoot(dir) // no link put there meanwhile leads out of it
	if err != nil {
		return fail.Becausef(fail.SyncFailed, "sending files: %w", err)
	}
	defer root.Close()
	files := make(map[Digest]Entry, len(m.Entries))
	for _, e := range m.Entries {
		if e.Kind == File {
			files[e.Content] = e
		}
	}
	// Two blocks at once: one is made while another is sent.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return fmt.Errorf("sending files: %w", err)
	}
	defer z.Reset(nil) // waits until nothing writes to w any more
	buffer := make([]byte, chunk)
	for _, content := range missing {
		e, ok := files[content]
		if !ok {
			err = errors.New("no file of the tree has this content")
		} else {
			err = writeContent(ctx, z, root, e, buffer)
		}
		if err != nil {
			return fail.Becausef(fail.SyncFailed, "sending content %s (%s): %w", content, e.Path, err)
		}
	}
	if err := z.Close(); err != nil {
		return fail.Becausef(fail.SyncFailed, "sending files: %w", err)
	}
	return nil
}

func writeContent(ctx context.Context, w io.Writer, root *os.Root, e Entry, buffer []byte) error {
	name, err := Unescape(e.Path)
	if err != nil {
		return err
	}
	header, err := hex.DecodeString(string(e.Content))
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	file, err := root.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	// A log that has grown since is still sent as it was.
	content, size, err := sum(ctx, io.TeeReader(io.LimitReader(file, e.Size), w), buffer)
	if err != nil {
		return err
	}
	if size != e.Size || content != e.Content {
		return fmt.Errorf("the file changed since it was scanned: want %d bytes and their SHA-256", e.Size)
	}
	return nil
}

// ReadContents reads what WriteContents sends and calls each with every content.
// Its reader ends with io.EOF only if size and SHA-256 are right; what each does
// not read is checked all the same. A stream that is broken, cut off or has a
// content that sizes does not list is SyncFailed.
func ReadContents(ctx context.Context, r io.Reader, sizes map[Digest]int64, each func(Digest, io.Reader) error) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return fail.Becausef(fail.SyncFailed, "receiving files: %w", err)
	}
	defer z.Close()
	var header [sha256.Size]byte
	for {
		if _, err := io.ReadFull(z, header[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fail.Becausef(fail.SyncFailed, "receiving files: %w", err)
		}
		want := Digest(hex.EncodeToString(header[:]))
		size, ok := sizes[want]
		if !ok {
			return fail.Becausef(fail.SyncFailed, "receiving files: content %s is none of the tree's", want)
		}
		content := &content{ctx: ctx, r: z, left: size, sum: sha256.New(), want: want}
		err := each(want, content)
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}
		if err != nil {
			return fail.Becausef(fail.SyncFailed, "receiving content %s: %w", want, err)
		}
	}
}

// content is one content of a stream, verified at its end.
type content struct {
	ctx  context.Context
	r    io.Reader
	left int64
	sum  hash.Hash
	want Digest
}

func (c *content) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	if c.left == 0 {
		if got := digestOf(c.sum); got != c.want {
			return 0, fmt.Errorf("its bytes have SHA-256 %s: the content was damaged on its way", got)
		}
		return 0, io.EOF
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.sum.Write(p[:n])
	c.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if c.left > 0 {
			err = fmt.Errorf("%d bytes before its end: %w", c.left, io.ErrUnexpectedEOF)
		}
	}
	return n, err
}
