// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// download downloads files from URLs into the folder dir, one after the other. A file gets its name only when it is complete: it
// has the wanted SHA-256, or the length that its server stated. A broken download with a wanted SHA-256 resumes, if the server
// supports ranges. Without one it starts again, because the file may have changed. Files that have the wanted SHA-256 already are
// not downloaded. A server may send nothing for as long as silence: one that vanished would block all later files.
func download(ctx context.Context, dir string, wanted []agent.Download, silence time.Duration, out io.Writer) error {
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
		size, digest, err := downloadOne(ctx, root, one, silence)
		if err != nil {
			problems = append(problems, fmt.Errorf("downloading %s: %w", one.URL, err))
			continue
		}
		fmt.Fprintf(out, "%s  %s, %s\n", digest, one.Path, humanize.Bytes(size))
	}
	return errors.Join(problems...)
}

func downloadOne(ctx context.Context, root *os.Root, one agent.Download, silence time.Duration) (
	size int64, digest tree.Digest, err error) {
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
	half := filepath.Join(folder, tree.PartialName(base))
	file, err := claimfile.OpenFileIn(root, half, os.O_CREATE|os.O_RDWR, 0o666)
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
	ctx, heard, stop := agent.WithSilence(ctx, silence)
	defer stop()
	if size, err = appendRest(ctx, one.URL, file, had, sum, heard); err != nil {
		return 0, "", err
	}
	digest = tree.DigestOf(sum)
	if cmp.Or(one.Content, digest) != digest {
		return 0, "", errors.Join(fmt.Errorf("it has SHA-256 %s, want %s", digest, one.Content), root.Remove(half))
	}
	return size, digest, root.Rename(half, one.Path)
}

// appendRest appends everything after the first had bytes of the URL, or starts again if the server supports no ranges. It returns
// the size of the complete file.
func appendRest(ctx context.Context, url string, file *os.File, had int64, sum hash.Hash, heard io.Writer) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	// The file as it is: otherwise Go decompresses what the server calls compressed for the transfer.
	request.Header.Set("Accept-Encoding", "identity")
	if had > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", had))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, cmp.Or(context.Cause(ctx), err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable:
		return had, nil // the file is complete, as its SHA-256 will show
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
	// The reader fails if the body is shorter than the server stated.
	came, err := io.Copy(io.MultiWriter(file, sum, heard), response.Body)
	if err != nil {
		return 0, fmt.Errorf("it broke off after %s; another attempt continues there: %w", humanize.Bytes(had+came),
			cmp.Or(context.Cause(ctx), err))
	}
	return had + came, nil
}

func digestOf(root *os.Root, name string) (int64, tree.Digest, error) {
	file, err := claimfile.OpenIn(root, name)
	if err != nil {
		return 0, "", err
	}
	defer file.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	return size, tree.DigestOf(sum), err
}
