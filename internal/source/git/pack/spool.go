package pack

import (
	"bytes"
	"io"
	"os"
)

// maxMemory bounds what intermediate objects take in memory, in bytes. What is
// more goes to files.
const maxMemory = 32 << 20

// budget is how many bytes of memory may still be taken.
type budget int64

// spool is an object's content that can be read at any offset.
type spool struct {
	size   int64
	memory *bytes.Buffer
	file   *os.File
	budget *budget
}

// newSpool makes room for size bytes, in memory if the budget has them.
func newSpool(size int64, memory *budget, scratch string) (*spool, error) {
	if size <= int64(*memory) {
		*memory -= budget(size)
		return &spool{size: size, memory: bytes.NewBuffer(make([]byte, 0, size)), budget: memory}, nil
	}
	file, err := os.CreateTemp(scratch, "object-")
	if err != nil {
		return nil, err
	}
	return &spool{size: size, file: file}, nil
}

func (s *spool) Write(b []byte) (int, error) {
	if s.file != nil {
		return s.file.Write(b)
	}
	return s.memory.Write(b)
}

// reader is the content that was written.
func (s *spool) reader() io.ReaderAt {
	if s.file != nil {
		return s.file
	}
	return bytes.NewReader(s.memory.Bytes())
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name())
		return
	}
	*s.budget += budget(s.size)
}
