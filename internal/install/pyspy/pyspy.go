// SPDX-License-Identifier: Apache-2.0

// Package pyspy fetches py-spy for the steps image: agents read the stacks of Python with it where the training image has none.
package pyspy

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
)

const (
	// program is the name of the program and of the Python package.
	program      = "py-spy"
	packageIndex = "https://pypi.org/simple/"
	// lockFile has the wheels' version and hashes, of all platforms. It is in the folder of training images.
	lockFile = "cpu/lock.txt"
	// maxWheel and maxPage bound what is read, in bytes.
	maxWheel, maxPage = 64 << 20, 16 << 20
	// answerTime bounds a request, whose answer has 3 MB. It is a guess.
	answerTime = time.Minute
)

var (
	locked    = regexp.MustCompile(`(?m)^py-spy==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$`)
	wheelLink = regexp.MustCompile(`href="([^"#]+/(py_spy-[^"#/]+\.whl))#sha256=([0-9a-f]{64})"`)
)

// machines are the platforms' names in wheels.
var machines = map[string]string{"linux/amd64": "_x86_64.whl", "linux/arm64": "_aarch64.whl"}

// Write writes the program of a platform, such as linux/amd64, into the folder dir, and its licence and bill of materials into a folder
// below licenses.
func Write(ctx context.Context, dir, licenses, platform string) error {
	lock, err := fs.ReadFile(mldevenv.Images(), lockFile)
	if err != nil {
		return err
	}
	found := locked.FindStringSubmatch(string(lock))
	if found == nil {
		return fmt.Errorf("%s does not lock it", lockFile)
	}
	version, hashes := found[1], strings.Split(strings.TrimPrefix(found[2], " --hash=sha256:"), " --hash=sha256:")
	wheel, err := fetch(ctx, platform, version, hashes)
	if err != nil {
		return err
	}
	files, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		return err
	}
	// https://packaging.python.org/en/latest/specifications/binary-distribution-format/
	stem, terms := "py_spy-"+version, filepath.Join(licenses, program+"@"+version)
	for from, to := range map[string]string{
		stem + ".data/scripts/" + program:                        filepath.Join(dir, program),
		stem + ".dist-info/licenses/LICENSE":                     filepath.Join(terms, "LICENSE"),
		stem + ".dist-info/sboms/" + program + ".cyclonedx.json": filepath.Join(terms, program+".cyclonedx.json"),
	} {
		content, err := fs.ReadFile(files, from)
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads the locked wheel from this user's cache, or else from the package index of Python. pip's variable PIP_INDEX_URL names
// another index.
func fetch(ctx context.Context, platform, version string, hashes []string) ([]byte, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cached := filepath.Join(cache, "ml-dev-env", fmt.Sprintf("py-spy-%s-%s.whl", version, strings.TrimPrefix(platform, "linux/")))
	wheel, err := os.ReadFile(cached)
	if err == nil && isLocked(wheel, hashes) {
		return wheel, nil
	}
	if wheel, err = download(ctx, platform, hashes); err != nil {
		return nil, fmt.Errorf("%w\nset PIP_INDEX_URL to an index that this machine reaches, or copy the wheel to %s", err, cached)
	}
	return wheel, errors.Join(os.MkdirAll(filepath.Dir(cached), 0o755), os.WriteFile(cached, wheel, 0o644))
}

func isLocked(wheel []byte, hashes []string) bool {
	return slices.Contains(hashes, fmt.Sprintf("%x", sha256.Sum256(wheel)))
}

func download(ctx context.Context, platform string, hashes []string) ([]byte, error) {
	index := packageIndex
	if other := os.Getenv("PIP_INDEX_URL"); other != "" {
		index = strings.TrimSuffix(other, "/") + "/"
	}
	page, err := url.Parse(index + program + "/")
	if err != nil {
		return nil, err
	}
	list, err := get(ctx, page, maxPage)
	if err != nil {
		return nil, err
	}
	for _, link := range wheelLink.FindAllStringSubmatch(string(list), -1) {
		if machine := machines[platform]; machine == "" || !strings.HasSuffix(link[2], machine) || !slices.Contains(hashes, link[3]) {
			continue
		}
		address, err := page.Parse(link[1])
		if err != nil {
			return nil, err
		}
		wheel, err := get(ctx, address, maxWheel)
		if err == nil && !isLocked(wheel, hashes) {
			err = fmt.Errorf("%s has another hash than %s", link[2], lockFile)
		}
		return wheel, err
	}
	return nil, fmt.Errorf("%s has no wheel with a hash of %s", page.Redacted(), lockFile)
}

func get(ctx context.Context, address *url.URL, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address.Redacted(), response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s has more than %d bytes", address.Redacted(), most)
	}
	return content, err
}
