package program

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// download brings files from URLs into the folder dir, one after the other. A file has its
// name only when it is whole: of the SHA-256 that is wanted, or as long as its server
// says. With a wanted SHA-256 what broke off goes on where it did, if the server can do
// that; without one it begins anew, for it may be another file by now. A file that is there
// with the wanted SHA-256 is not brought again.
func download(ctx context.Context, client *http.Client, dir string, wanted []agent.Download, out io.Writer) error {
	// Ranks run as another user of the same group.
	syscall.Umask(0o002)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var problems []error
	for _, one := range wanted {
		size, digest, err := downloadOne(ctx, client, root, one)
		if err != nil {
			problems = append(problems, fmt.Errorf("downloading %s: %w", one.URL, err))
			continue
		}
		fmt.Fprintf(out, "%s  %s, %s\n", digest, one.Path, humanize.Bytes(size))
	}
	return errors.Join(problems...)
}

func downloadOne(ctx context.Context, client *http.Client, root *os.Root, one agent.Download) (size int64, digest tree.Digest, err error) {
	if one.Content != "" {
		if size, digest, err := digestOf(root, one.Path); err == nil && digest == one.Content {
			return size, digest, nil
		}
	}
	folder, base := filepath.Split(one.Path)
	if folder = filepath.Clean(folder); folder != "." {
		if err := root.MkdirAll(folder, 0o777); err != nil {
			return 0, "", err
		}
	}
	half := filepath.Join(folder, tree.Partial+base)
	file, err := root.OpenFile(half, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return 0, "", err
	}
	defer file.Close()
	sum := sha256.New()
	had := int64(0)
	if one.Content != "" {
		had, err = io.Copy(sum, file)
	} else {
		err = file.Truncate(0)
	}
	if err != nil {
		return 0, "", err
	}
	if size, err = appendRest(ctx, client, one.URL, file, had, sum); err != nil {
		return 0, "", err
	}
	digest = tree.Digest(hex.EncodeToString(sum.Sum(nil)))
	if cmp.Or(one.Content, digest) != digest {
		return 0, "", errors.Join(fmt.Errorf("it has SHA-256 %s, want %s", digest, one.Content), root.Remove(half))
	}
	return size, digest, root.Rename(half, one.Path)
}

// appendRest adds what comes behind the first had bytes of the URL, or begins anew where its
// server knows no ranges. It returns the size of the whole.
func appendRest(ctx context.Context, client *http.Client, url string, file *os.File, had int64, sum hash.Hash) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	if had > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", had))
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable:
		return had, nil // all of it is there, as its SHA-256 shows
	case http.StatusOK:
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		if err := file.Truncate(0); err != nil {
			return 0, err
		}
		sum.Reset()
		had = 0
	default:
		return 0, fmt.Errorf("the server answers %s", response.Status)
	}
	// A body that is shorter than the server has said is an error of the reader.
	came, err := io.Copy(io.MultiWriter(file, sum), response.Body)
	if err != nil {
		return 0, fmt.Errorf("it broke off after %s, and goes on there when it is tried again: %w", humanize.Bytes(had+came), err)
	}
	return had + came, nil
}

func digestOf(root *os.Root, name string) (int64, tree.Digest, error) {
	file, err := root.Open(name)
	if err != nil {
		return 0, "", err
	}
	defer file.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	return size, tree.Digest(hex.EncodeToString(sum.Sum(nil))), err
}
