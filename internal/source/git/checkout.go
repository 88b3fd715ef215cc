package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git/pack"
)

// checkout is a tree in the making: all repositories are fetched and judged
// before the first file is written.
type checkout struct {
	log     *slog.Logger
	root    *os.Root
	scratch string
	source  Source
	keys    keyring
	client  *http.Client
	// pause is before the second try of a download; it grows with each.
	pause time.Duration

	modules []*module
	// links are all symbolic links, path to target.
	links map[string]string
	// unsafe says what the tree must not have.
	unsafe []string
	// entries counts all there is in all trees.
	entries int
}

// module is the repository or one submodule.
type module struct {
	address address
	// prefix is its folder, empty or with a slash at its end.
	prefix string
	pack   *pack.Pack
	commit pack.Hash
	files  []file
	// folders are those of submodules, and of others that would be empty.
	folders  []string
	pointers []pointerFile
	// lfsURL is what .lfsconfig says, empty for the usual place.
	lfsURL string
}

// file is one to write.
type file struct {
	path       string
	content    pack.Hash
	executable bool
}

func newCheckout(log *slog.Logger, root *os.Root, scratch string, s Source, home address) *checkout {
	keys := newKeyring(s.Auth, home)
	if user, _, ok := keys.basic(home.scheme, home.host, home.port); ok && home.scheme == "http" {
		log.Warn(fmt.Sprintf("The credentials of %s go to %s without encryption; https:// would protect them.", printable(user), home))
	}
	return &checkout{
		log: log, root: root, scratch: scratch, source: s, keys: keys,
		client: newHTTPClient(keys), pause: time.Second, links: map[string]string{},
	}
}

// close removes the packs.
func (c *checkout) close() {
	for _, m := range c.modules {
		m.close()
	}
}

func (m *module) close() {
	if m.pack != nil {
		m.pack.Close()
		m.pack = nil
	}
}

// load fetches a repository's commit, and its submodules'.
func (c *checkout) load(ctx context.Context, a address, revision, prefix string, depth int) error {
	r := &remote{log: c.log, client: c.client, keys: c.keys, address: a, scratch: c.scratch, silence: maxSilence}
	got, commit, err := r.fetch(ctx, revision)
	if err != nil {
		return err
	}
	m := &module{address: a, prefix: prefix, pack: got, commit: commit}
	c.modules = append(c.modules, m)
	submodules, err := c.survey(m)
	if err != nil {
		return fmt.Errorf("reading commit %s of %s: %w", commit, a, err)
	}
	if !c.source.Submodules || len(submodules) == 0 {
		return nil
	}
	return c.loadSubmodules(ctx, m, submodules, depth)
}

// refuse fails if the tree has what must not be, with all of it at once.
func (c *checkout) refuse() error {
	bad := append(slices.Clone(c.unsafe), badLinks(c.links)...)
	if len(bad) > 0 {
		const shown = 20
		text := strings.Join(bad[:min(len(bad), shown)], "\n")
		if len(bad) > shown {
			text += fmt.Sprintf("\nand %d more", len(bad)-shown)
		}
		return fail.Advise(
			fail.Becausef(fail.UnsafeTree, "checking the tree of %s: want names and links that stay inside it:\n%s", c.modules[0].address, text),
			"remove or rename these in the repository; data outside it belongs under /datasets")
	}
	if c.source.LFS {
		return nil
	}
	return c.refusePointers()
}

// write writes the files, then LFS objects in the place of their pointers, and
// the links last, so that nothing is ever written through one.
func (c *checkout) write(ctx context.Context) error {
	files := 0
	for _, m := range c.modules {
		files += len(m.files) + len(m.pointers)
		if err := c.writeFiles(ctx, m); err != nil {
			return storable(fmt.Errorf("writing the files of %s: %w", m.address, err))
		}
		m.close()
	}
	for _, m := range c.modules {
		if err := c.fetchObjects(ctx, m); err != nil {
			return err
		}
	}
	for link, target := range c.links {
		if err := errors.Join(c.makeFolder(path.Dir(link)), c.root.Symlink(target, link)); err != nil {
			return storable(fmt.Errorf("writing link: %w", err))
		}
	}
	c.log.Info(fmt.Sprintf("Wrote %s and %s.", humanize.Count(files, "file"), humanize.Count(len(c.links), "link")))
	return nil
}

// storable gives a name that the filesystem refuses its reason.
func storable(err error) error {
	if errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.EILSEQ) || errors.Is(err, syscall.EINVAL) {
		return fail.Because(fail.UnsafeTree, err)
	}
	return local(err)
}

// local advises about a full disk.
func local(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fail.Advise(err, "df -h   # the pack and the files need room at the same time")
	}
	return err
}

func (c *checkout) writeFiles(ctx context.Context, m *module) error {
	folders := map[string]bool{".": true}
	for _, folder := range m.folders {
		if err := c.makeFolder(folder); err != nil {
			return err
		}
	}
	// The files of one content lie together.
	slices.SortFunc(m.files, func(a, b file) int {
		return strings.Compare(string(a.content[:])+a.path, string(b.content[:])+b.path)
	})
	var contents []pack.Hash
	for i, f := range m.files {
		if i == 0 || f.content != m.files[i-1].content {
			contents = append(contents, f.content)
		}
		if dir := path.Dir(f.path); !folders[dir] {
			folders[dir] = true
			if err := c.makeFolder(dir); err != nil {
				return err
			}
		}
	}
	p := newProgress(c.log)
	return m.pack.Extract(ctx, contents, func(h pack.Hash) (io.WriteCloser, error) {
		first, _ := slices.BinarySearchFunc(m.files, h, func(f file, h pack.Hash) int {
			return strings.Compare(string(f.content[:]), string(h[:]))
		})
		end := first + 1
		for end < len(m.files) && m.files[end].content == h {
			end++
		}
		return c.create(m.files[first:end], p)
	})
}

func (c *checkout) makeFolder(name string) error {
	if name == "." || name == "" {
		return nil
	}
	return c.root.MkdirAll(name, 0o777)
}

// create opens the first of the files of one content; closing copies it to the others.
func (c *checkout) create(files []file, p *progress) (io.WriteCloser, error) {
	out, err := c.open(files[0].path, files[0].executable)
	if err != nil {
		return nil, err
	}
	return &output{File: out, checkout: c, files: files, progress: p}, nil
}

func (c *checkout) open(name string, executable bool) (*os.File, error) {
	mode := fs.FileMode(0o666)
	if executable {
		mode = 0o777
	}
	return c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

type output struct {
	*os.File
	checkout *checkout
	files    []file
	progress *progress
}

func (o *output) Write(b []byte) (int, error) {
	o.progress.add(len(b), func(done, rate string) string {
		return fmt.Sprintf("Writing files: %s, %s/s.", done, rate)
	})
	return o.File.Write(b)
}

func (o *output) Close() error {
	if err := o.File.Close(); err != nil {
		return err
	}
	for _, f := range o.files[1:] {
		if err := o.checkout.copy(o.files[0].path, f); err != nil {
			return err
		}
	}
	return nil
}

func (c *checkout) copy(from string, to file) error {
	in, err := c.root.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := c.open(to.path, to.executable)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
