// SPDX-License-Identifier: Apache-2.0

// Package claimfile opens files that others may have made: on a claim, in a user's folder, in a repository. They can be
// anything: a FIFO would block its reader for ever, a link leads elsewhere, a huge file exhausts memory. It also deletes folders, so that
// no path that is empty, relative or a link takes the files of others.
package claimfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Errors for what is not the file that was expected.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("file too large")
)

// Open opens a regular file for reading. It does not block or follow a link. Any other kind of file is ErrNotRegular.
func Open(path string) (*os.File, error) { return OpenFile(path, os.O_RDONLY, 0) }

// Append opens a log for writing at its end and creates a missing one. Other kinds of files are errors as in Open.
func Append(path string) (*os.File, error) {
	return OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o664)
}

// OpenFile is os.OpenFile for regular files. Other kinds are errors as in Open.
func OpenFile(path string, flag int, mode fs.FileMode) (*os.File, error) {
	file, err := os.OpenFile(path, flag|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_NOCTTY, mode)
	return regular(path, file, err, false)
}

// OpenIn opens a regular file below root for reading. A link may lead to it, but not out of root.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return OpenFileIn(root, name, os.O_RDONLY, 0)
}

// OpenFileIn is OpenIn with other flags.
func OpenFileIn(root *os.Root, name string, flag int, mode fs.FileMode) (*os.File, error) {
	file, err := root.OpenFile(name, flag|syscall.O_NONBLOCK|syscall.O_NOCTTY, mode)
	return regular(name, file, err, false)
}

// FolderFS is os.DirFS without anything but regular files, folders and links.
func FolderFS(dir string) fs.FS {
	links, _ := os.DirFS(dir).(fs.ReadLinkFS) // it is one
	return folderFS{links, dir}
}

type folderFS struct {
	fs.ReadLinkFS
	dir string
}

// Open implements fs.FS.
func (f folderFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	file, err := os.OpenFile(filepath.Join(f.dir, filepath.FromSlash(name)), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if file, err = regular(name, file, err, true); err != nil {
		return nil, err // no typed nil
	}
	return file, nil
}

// regular returns the file that was just opened if it is regular, or a folder where folders may be.
func regular(path string, file *os.File, err error, folders bool) (*os.File, error) {
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO): // a link; a socket, or a FIFO that nothing reads
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	case err != nil:
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() && folders {
		return file, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err == nil {
		// A process that inherits the file expects a blocking one.
		err = syscall.SetNonblock(int(file.Fd()), false)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Read reads a regular file of at most so many bytes. A larger one is ErrTooLarge.
func Read(path string, most int64) ([]byte, error) {
	file, err := Open(path)
	return read(path, file, err, most)
}

// ReadIn is Read for a file below root. A link may lead to it, but not out of root.
func ReadIn(root *os.Root, name string, most int64) ([]byte, error) {
	file, err := OpenIn(root, name)
	return read(name, file, err, most)
}

func read(path string, file *os.File, err error, most int64) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(content)) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)}
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// ReadJSON decodes a regular file of at most so many bytes.
func ReadJSON(path string, most int64, value any) error {
	content, err := Read(path, most)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, value); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// ReadTail reads the last bytes of a regular file, at most so many.
func ReadTail(path string, most int64) (content []byte, info fs.FileInfo, err error) {
	file, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	// The file may grow meanwhile.
	content, err = io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-most), most))
	return content, info, err
}

// MkdirTemp is os.MkdirTemp, which returns a path that RemoveAll takes also if TMPDIR is relative.
func MkdirTemp(dir, pattern string) (string, error) {
	dir, err := filepath.Abs(cmp.Or(dir, os.TempDir()))
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, pattern)
}

// RemoveFolder is RemoveAll for a folder that this program has made itself.
func RemoveFolder(path string) error { return RemoveAll(filepath.Dir(path), path) }

// RemoveAll deletes what is at path, with everything below it, if there is anything. Both paths must be absolute, and path below folder,
// which is one of this program's own; no link on the way may leave it.
func RemoveAll(folder, path string) error {
	name, err := filepath.Rel(folder, path)
	if err != nil || !filepath.IsAbs(folder) || !filepath.IsLocal(name) || name == "." {
		return fmt.Errorf("deleting %q: want a path below %q, both absolute", path, folder)
	}
	root, err := os.OpenRoot(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return errors.Join(root.RemoveAll(name), root.Close())
}

// Replace replaces a file in one step, so that no reader sees half of it. It writes the content into a folder of the same volume
// first.
func Replace(path, folder string, content []byte) error {
	file, err := os.CreateTemp(folder, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	return (&Reservation{file, path}).Replace(content)
}

// Reservation is a file that takes the place of another one later, even when the volume is full then.
type Reservation struct {
	file *os.File
	path string
}

// ReservationPath returns the path of what Reserve makes.
func ReservationPath(path, use string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+use)
}

// Reserve takes so many bytes of the volume for what will replace a file, or the room that was taken before for the same use.
func Reserve(path, use string, size int) (*Reservation, error) {
	room := ReservationPath(path, use)
	file, err := OpenFile(room, os.O_CREATE|os.O_WRONLY, 0o664)
	if err != nil {
		return nil, err
	}
	if err := take(file, size); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(room))
	}
	return &Reservation{file, path}, nil
}

// Leave leaves the room to a later Reserve, also of another process.
func (r *Reservation) Leave() error { return r.file.Close() }

// Replace is Replace with the reserved bytes. Longer content needs free room.
func (r *Reservation) Replace(content []byte) error {
	_, err := r.file.WriteAt(content, 0)
	err = errors.Join(err, r.file.Truncate(int64(len(content))), r.file.Chmod(0o664), r.file.Close())
	if err == nil {
		err = os.Rename(r.file.Name(), r.path)
	}
	if err != nil {
		os.Remove(r.file.Name())
	}
	return err
}

// writeRoom takes room of a volume by writing. A server may refuse it only when the bytes reach it.
func writeRoom(file *os.File, size int) error {
	if size == 0 {
		return nil
	}
	_, err := file.Write(make([]byte, size))
	return errors.Join(err, file.Sync())
}
