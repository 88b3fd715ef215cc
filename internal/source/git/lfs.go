package git

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

const (
	// lfsBatch is how many objects are asked for at once, as git-lfs does.
	lfsBatch = 100
	// lfsParallel is how many objects come at once.
	lfsParallel = 4
	// lfsTries is how often an object is tried.
	lfsTries = 3
	lfsType  = "application/vnd.git-lfs+json"
)

// lfsServer is where objects are asked for.
type lfsServer struct {
	client *http.Client
	url    *url.URL
	// header has what the ssh server gave to authenticate with.
	header map[string]string
}

// lfsObject is an object in the batch API's request and answer.
type lfsObject struct {
	ID            string               `json:"oid"`
	Size          int64                `json:"size"`
	Authenticated bool                 `json:"authenticated,omitempty"`
	Actions       map[string]lfsAction `json:"actions,omitempty"`
	Error         *lfsFailure          `json:"error,omitempty"`
}

type lfsAction struct {
	Href   string            `json:"href"`
	Header map[string]string `json:"header"`
}

type lfsFailure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// fetchObjects writes the objects that a module's pointers stand for.
func (c *checkout) fetchObjects(ctx context.Context, m *module) error {
	files := map[pointer][]file{}
	var wanted []pointer
	var total int64
	for _, p := range m.pointers {
		if files[p.pointer] == nil {
			wanted = append(wanted, p.pointer)
			total += p.size
		}
		files[p.pointer] = append(files[p.pointer], p.file)
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := c.fetchWanted(ctx, m, wanted, total, files); err != nil {
		return explainLFS(ctx, c.keys, m.address, err)
	}
	return nil
}

func (c *checkout) fetchWanted(ctx context.Context, m *module, wanted []pointer, total int64, files map[pointer][]file) error {
	server, err := c.lfsServer(ctx, m)
	if err != nil {
		return err
	}
	c.log.Info(fmt.Sprintf("Fetching %s, %s, from %s.", humanize.Count(len(wanted), "LFS object"), humanize.Bytes(total), server.url.Host))
	p := newProgress(c.log)
	count := func(n int) {
		p.add(n, func(done, rate string) string {
			return fmt.Sprintf("Fetching LFS objects: %s of %s, %s/s.", done, humanize.Bytes(total), rate)
		})
	}
	for len(wanted) > 0 {
		batch := wanted[:min(len(wanted), lfsBatch)]
		wanted = wanted[len(batch):]
		objects, err := server.batch(ctx, batch)
		if err != nil {
			return err
		}
		group, inner := errgroup.WithContext(ctx)
		group.SetLimit(lfsParallel)
		for _, want := range batch {
			group.Go(func() error {
				object, ok := objects[want]
				if !ok {
					return fmt.Errorf("object %s: the server does not mention it", want.id)
				}
				at, err := c.download(inner, server.client, want, object, count)
				if err != nil {
					return err
				}
				return c.place(at, files[want])
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// lfsServer finds a module's LFS server: the one that .lfsconfig names, the one
// that the ssh server names, or the usual place beside the repository.
func (c *checkout) lfsServer(ctx context.Context, m *module) (*lfsServer, error) {
	a := m.address
	if m.lfsURL != "" {
		configured, err := parseAddress(m.lfsURL)
		if err != nil {
			return nil, fmt.Errorf("reading .lfsconfig: %w", err)
		}
		if configured.scheme != "ssh" {
			return &lfsServer{client: c.client, url: configured.url()}, nil
		}
		a = configured
	}
	server := &lfsServer{client: c.client, url: lfsEndpoint(a)}
	if a.scheme != "ssh" {
		return server, nil
	}
	granted, err := askLFSAccess(ctx, a, c.keys)
	if err != nil {
		// Not every server has the command; the usual place may be open.
		c.log.Info(fmt.Sprintf("The ssh server names no LFS server; trying %s.", server.url))
		return server, nil //nolint:nilerr // that is told if it fails too
	}
	server.header = granted.Header
	if granted.Href != "" {
		u, err := url.Parse(granted.Href)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" {
			return nil, errors.New("reading what git-lfs-authenticate says: href is no URL")
		}
		server.url = u
	}
	return server, nil
}

// askLFSAccess asks the ssh server where the LFS server is and how to be let in.
func askLFSAccess(ctx context.Context, a address, keys keyring) (lfsAction, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client, err := dialSSH(ctx, a, keys)
	if err != nil {
		return lfsAction{}, err
	}
	defer func() { _ = client.Close() }()
	shell, err := client.NewSession()
	if err != nil {
		return lfsAction{}, err
	}
	out, err := shell.Output("git-lfs-authenticate " + quote(a.path) + " download")
	if err != nil {
		return lfsAction{}, err
	}
	var granted lfsAction
	return granted, json.Unmarshal(out, &granted)
}

// batch asks where the objects are.
func (s *lfsServer) batch(ctx context.Context, wanted []pointer) (map[pointer]lfsObject, error) {
	type message struct {
		Operation string      `json:"operation"`
		Transfers []string    `json:"transfers"`
		HashAlgo  string      `json:"hash_algo"`
		Objects   []lfsObject `json:"objects"`
	}
	ask := message{Operation: "download", Transfers: []string{"basic"}, HashAlgo: "sha256"}
	for _, p := range wanted {
		ask.Objects = append(ask.Objects, lfsObject{ID: p.id, Size: p.size})
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url.JoinPath("objects/batch").String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", lfsType)
	r.Header.Set("Content-Type", lfsType)
	for key, value := range s.header {
		r.Header.Set(key, value)
	}
	answer, err := do(s.client, r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var got struct {
		Transfer string      `json:"transfer"`
		Objects  []lfsObject `json:"objects"`
	}
	const maxAnswer = 16 << 20
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&got); err != nil {
		return nil, fmt.Errorf("reading the LFS server's answer: %w", err)
	}
	if got.Transfer != "" && got.Transfer != "basic" {
		return nil, fmt.Errorf("reading the LFS server's answer: transfer %q: want basic", got.Transfer)
	}
	objects := map[pointer]lfsObject{}
	for _, o := range got.Objects {
		objects[pointer{o.ID, o.Size}] = o
	}
	return objects, nil
}

// download writes an object to a scratch file and checks it.
func (c *checkout) download(ctx context.Context, client *http.Client, want pointer, o lfsObject, count func(int)) (string, error) {
	if o.Error != nil {
		return "", fmt.Errorf("object %s: the LFS server says: %d %s", want.id, o.Error.Code, o.Error.Message)
	}
	action, ok := o.Actions["download"]
	if !ok {
		return "", fmt.Errorf("object %s: the LFS server does not have it", want.id)
	}
	at := filepath.Join(c.scratch, want.id)
	for try := 1; ; try++ {
		err := c.downloadOnce(ctx, client, at, want, action, o.Authenticated, count)
		if err == nil {
			return at, nil
		}
		err = fmt.Errorf("object %s: %w", want.id, err)
		if try == lfsTries || ctx.Err() != nil || !worthAnother(err) {
			return "", err
		}
		c.log.Warn(fmt.Sprintf("Trying once more: %s.", c.keys.clean(err.Error())))
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(time.Duration(try) * c.pause):
		}
	}
}

// worthAnother says whether a second try may go better: not where the server
// decided, nor where the disk failed.
func worthAnother(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.code >= 500 || status.code == http.StatusTooManyRequests
	}
	var disk *os.PathError
	return !errors.As(err, &disk) && !untrusted(err)
}

func (c *checkout) downloadOnce(ctx context.Context, client *http.Client, at string, want pointer, action lfsAction, authenticated bool, count func(int)) (err error) {
	patient, patience := newPatience(ctx, maxSilence)
	defer patience.stop()
	if authenticated {
		patient = context.WithValue(patient, signed{}, true)
	}
	r, err := http.NewRequestWithContext(patient, http.MethodGet, action.Href, http.NoBody)
	if err != nil {
		return errors.New("the LFS server gives no URL to fetch it from")
	}
	for key, value := range action.Header {
		r.Header.Set(key, value)
	}
	answer, err := do(client, r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	out, err := os.Create(at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	hash := sha256.New()
	got := 0
	in := &counted{from: patience.reader(answer.Body), add: func(n int) { got += n; count(n) }}
	// Whatever is more than wanted is not stored.
	n, err := io.Copy(io.MultiWriter(out, hash), io.LimitReader(in, want.size+1))
	if err != nil {
		count(-got)
		if patient.Err() != nil {
			return context.Cause(patient)
		}
		return err
	}
	if seen := hex.EncodeToString(hash.Sum(nil)); n != want.size || seen != want.id {
		count(-got)
		return fmt.Errorf("got %d bytes with SHA-256 %s: want %d bytes", n, seen, want.size)
	}
	return nil
}

// place moves a downloaded object to where its first pointer was, and copies it
// to the others.
func (c *checkout) place(object string, files []file) error {
	for i, f := range files {
		if err := c.makeFolder(path.Dir(f.path)); err != nil {
			return err
		}
		if i > 0 {
			if err := c.copy(files[0].path, f); err != nil {
				return err
			}
			continue
		}
		if err := c.root.Rename(path.Join(scratchName, filepath.Base(object)), f.path); err != nil {
			return err
		}
		if !f.executable {
			continue
		}
		info, err := c.root.Stat(f.path)
		if err != nil {
			return err
		}
		// Who may read may execute: the umask has had its say.
		mode := info.Mode().Perm()
		if err := c.root.Chmod(f.path, mode|mode&0o444>>2); err != nil {
			return err
		}
	}
	return nil
}

// explainLFS gives a failure to get objects its reason and advice.
func explainLFS(ctx context.Context, keys keyring, a address, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("fetching LFS objects of %s: %w", a, context.Cause(ctx))
	}
	var disk *os.PathError
	if errors.As(err, &disk) {
		return storable(fmt.Errorf("fetching LFS objects of %s: %w", a, err))
	}
	text := keys.clean(err.Error())
	next := "git lfs fetch --all && git lfs push --all origin   # in a clone that has the objects"
	var status *statusError
	switch {
	case untrusted(err):
		next = "put the CA of the LFS server, as PEM, under ca-bundle.crt into the ConfigMap mlenv-trusted-ca, or pass --ca-file"
	case errors.As(err, &status) && (status.code == http.StatusUnauthorized || status.code == http.StatusForbidden):
		next = "give the git secret a username and a token that may read the repository's LFS objects, for " + keys.home.host
	case errors.As(err, &status) && status.code == http.StatusNotFound:
		next = "if the LFS server is elsewhere, name it in .lfsconfig: git config -f .lfsconfig lfs.url https://HOST/PATH"
	}
	return fail.Advise(fail.Becausef(fail.LFSPointers, "fetching LFS objects of %s: %s", a, text), "%s", next)
}
