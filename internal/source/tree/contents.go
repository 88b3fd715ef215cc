// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// window is how far zstd looks back, in bytes. It bounds the memory of both sides.
const window = 1 << 20

// WriteContents sends contents of the tree at dir as one zstd stream, each after the 32 bytes of its SHA-256. The
// manifest has the sizes, so the reader needs not know the order. A file that changed since the manifest was made is
// SyncFailed; the stream then has no end, so that no reader takes it for whole. from has the number of first bytes of some contents
// that the reader has already, which are not sent; only the reader can check the SHA-256 of those contents.
func WriteContents(ctx context.Context, w io.Writer, dir string, m Manifest, missing []Digest, from map[Digest]int64) error {
	root, err := os.OpenRoot(dir) // no link made meanwhile leads out of it
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
	// One block is compressed while another is sent.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
		zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return fmt.Errorf("sending files: %w", err)
	}
	defer z.Reset(nil) // waits for the last write to w
	for _, content := range missing {
		e, ok := files[content]
		if !ok {
			err = errors.New("no file of the tree has this content")
		} else {
			err = writeContent(ctx, z, root, e, from[content])
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

func writeContent(ctx context.Context, w io.Writer, root *os.Root, e Entry, from int64) error {
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
	file, err := claimfile.OpenIn(root, name)
	if err != nil {
		return err
	}
	defer file.Close()
	if from < 0 || from > e.Size {
		return fmt.Errorf("its byte %d: want one of %d", from, e.Size)
	}
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return err
	}
	// A log that has grown since is sent as it was.
	content, size, err := hashReader(ctx, io.TeeReader(io.LimitReader(file, e.Size-from), w), e.Size)
	if err != nil {
		return err
	}
	if size != e.Size-from || from == 0 && content != e.Content {
		return fmt.Errorf("the file changed since it was scanned: want %d bytes and their SHA-256", e.Size)
	}
	return nil
}

// Begun is the part of a content that the reader has: its size, and its SHA-256 so far, which ReadContents continues. Without Sum,
// ReadContents verifies only the size of the content.
type Begun struct {
	Size int64
	Sum  hash.Hash
}

// ErrDamaged is a content with another SHA-256.
var ErrDamaged = errors.New("the content was damaged on its way")

// ReadContents reads what WriteContents sends and calls each with every content, or with the rest of it behind the part that begun
// returns. The reader of a content ends with io.EOF only if size and SHA-256 are right; ReadContents verifies what each leaves unread.
// A stream that is broken or cut off, repeats a content, or has one that is not in sizes is SyncFailed.
func ReadContents(ctx context.Context, r io.Reader, sizes map[Digest]int64, begun func(Digest) Begun,
	each func(Digest, io.Reader) error) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return fail.Becausef(fail.SyncFailed, "receiving files: %w", err)
	}
	defer z.Close()
	due := maps.Clone(sizes) // each content once, so that a small stream cannot unpack without end
	for {
		var header [sha256.Size]byte
		if _, err := io.ReadFull(z, header[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fail.Becausef(fail.SyncFailed, "receiving files: %w", err)
		}
		want := Digest(hex.EncodeToString(header[:]))
		size, ok := due[want]
		if !ok {
			return fail.Becausef(fail.SyncFailed, "receiving files: content %s is not in the tree, or came before", want)
		}
		delete(due, want)
		part := begun(want)
		if part.Size < 0 || part.Size > size {
			return fail.Becausef(fail.SyncFailed, "receiving content %s: its byte %d: want one of %d", want, part.Size, size)
		}
		content := &content{Reader: contextReader{ctx, z}, left: size - part.Size, sum: part.Sum, want: want}
		err := each(want, content)
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}
		if err != nil {
			return fail.Becausef(fail.SyncFailed, "receiving content %s: %w", want, err)
		}
	}
}

type content struct {
	io.Reader
	left int64
	sum  hash.Hash
	want Digest
}

func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 {
		if c.sum != nil && DigestOf(c.sum) != c.want {
			return 0, fmt.Errorf("its bytes have SHA-256 %s: %w", DigestOf(c.sum), ErrDamaged)
		}
		return 0, io.EOF
	}
	n, err := c.Reader.Read(p[:min(int64(len(p)), c.left)])
	if c.sum != nil {
		c.sum.Write(p[:n])
	}
	c.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if c.left > 0 {
			err = fmt.Errorf("%d bytes before its end: %w", c.left, io.ErrUnexpectedEOF)
		}
	}
	return n, err
}
