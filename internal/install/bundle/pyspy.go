// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// spyName is its name as a program and as a package of Python.
const spyName = agent.PySpy

// Spy is py-spy for one platform, a static program. Agents read the stacks of Python with it where the training image has none.
type Spy struct {
	Program []byte
	Version string
	// Texts are its terms and the wheel's own bill of materials, by the names of their files.
	Texts map[string][]byte
}

const (
	packageIndex = "https://pypi.org/simple/"
	// spyLock has the wheels' version and hashes, of both platforms.
	spyLock = "cpu/lock.txt"
	// maxWheel and maxPage bound what is read, in bytes.
	maxWheel, maxPage = 64 << 20, 16 << 20
)

var (
	lockedSpy = regexp.MustCompile(`(?m)^py-spy==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$`)
	wheelLink = regexp.MustCompile(`href="([^"#]+/(py_spy-[^"#/]+\.whl))#sha256=([0-9a-f]{64})"`)
)

// machines are the platforms' names in wheels.
var machines = map[string]string{"amd64": "_x86_64.whl", "arm64": "_aarch64.whl"}

// FetchSpy reads the locked wheel of py-spy from this user's cache, or else from the package index of Python. pip's variable
// PIP_INDEX_URL names another index.
func FetchSpy(ctx context.Context, platform v1.Platform) (_ Spy, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetching %s for %s: %w", spyName, platform, err)
		}
	}()
	lock, err := fs.ReadFile(mldevenv.Images(), spyLock)
	if err != nil {
		return Spy{}, err
	}
	locked := lockedSpy.FindStringSubmatch(string(lock))
	if locked == nil {
		return Spy{}, fmt.Errorf("images/%s does not lock it", spyLock)
	}
	version, hashes := locked[1], strings.Split(strings.TrimPrefix(locked[2], " --hash=sha256:"), " --hash=sha256:")
	cache, err := os.UserCacheDir()
	if err != nil {
		return Spy{}, err
	}
	cached := filepath.Join(cache, "ml-dev-env", fmt.Sprintf("py-spy-%s-%s.whl", version, platform.Architecture))
	wheel, err := os.ReadFile(cached)
	if err != nil || !isLocked(wheel, hashes) {
		if wheel, err = downloadSpy(ctx, platform, hashes); err != nil {
			return Spy{}, fail.Advise(err, "set PIP_INDEX_URL to an index that this machine reaches, or copy the wheel to %s", cached)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(cached), 0o755), os.WriteFile(cached, wheel, 0o644)); err != nil {
			return Spy{}, err
		}
	}
	return openWheel(wheel, version)
}

func isLocked(wheel []byte, hashes []string) bool {
	return slices.Contains(hashes, fmt.Sprintf("%x", sha256.Sum256(wheel)))
}

func downloadSpy(ctx context.Context, platform v1.Platform, hashes []string) ([]byte, error) {
	index := packageIndex
	if other := os.Getenv("PIP_INDEX_URL"); other != "" {
		index = strings.TrimSuffix(other, "/") + "/"
	}
	page, err := url.Parse(index + spyName + "/")
	if err != nil {
		return nil, err
	}
	list, err := get(ctx, page, maxPage)
	if err != nil {
		return nil, err
	}
	for _, link := range wheelLink.FindAllStringSubmatch(string(list), -1) {
		if !strings.HasSuffix(link[2], machines[platform.Architecture]) || !slices.Contains(hashes, link[3]) {
			continue
		}
		address, err := page.Parse(link[1])
		if err != nil {
			return nil, err
		}
		wheel, err := get(ctx, address, maxWheel)
		if err == nil && !isLocked(wheel, hashes) {
			err = fmt.Errorf("%s has another hash than images/%s", link[2], spyLock)
		}
		return wheel, err
	}
	return nil, fmt.Errorf("%s has no wheel with a hash of images/%s", page.Redacted(), spyLock)
}

func get(ctx context.Context, address *url.URL, most int64) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
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

// openWheel finds the program, the terms and the bill of materials in a wheel, see
// https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
func openWheel(wheel []byte, version string) (Spy, error) {
	files, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		return Spy{}, err
	}
	spy := Spy{Version: version, Texts: map[string][]byte{}}
	stem := "py_spy-" + version
	if spy.Program, err = fs.ReadFile(files, stem+".data/scripts/"+spyName); err != nil {
		return Spy{}, err
	}
	for _, name := range []string{"licenses/LICENSE", "sboms/py-spy.cyclonedx.json"} {
		if spy.Texts[filepath.Base(name)], err = fs.ReadFile(files, stem+".dist-info/"+name); err != nil {
			return Spy{}, err
		}
	}
	return spy, nil
}

// terms returns the files of the licence, for the image.
func (s Spy) terms() (files []entry) {
	for _, name := range slices.Sorted(maps.Keys(s.Texts)) {
		files = append(files, file(path.Join(licencesFolder, spyName+"@"+s.Version, name), s.Texts[name], 0o444))
	}
	return files
}
