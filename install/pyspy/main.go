// SPDX-License-Identifier: Apache-2.0

// Command pyspy writes py-spy into the folders of an image's platforms, with its licence and bill of materials: agents read the stacks of
// Python with it where the training image has none. It runs in the folder of the checkout.
//
// usage: pyspy DIR PLATFORM..., as in pyspy cmd/steps/kodata linux/amd64
package main

import (
	"archive/zip"
	"bytes"
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
)

const (
	// program is the name of the program and of the Python package.
	program      = "py-spy"
	packageIndex = "https://pypi.org/simple/"
	// lockFile has the wheels' version and hashes, of all platforms.
	lockFile = "images/cpu/lock.txt"
	// maxWheel and maxPage bound what is read, in bytes.
	maxWheel, maxPage = 64 << 20, 16 << 20
)

var (
	locked    = regexp.MustCompile(`(?m)^py-spy==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$`)
	wheelLink = regexp.MustCompile(`href="([^"#]+/(py_spy-[^"#/]+\.whl))#sha256=([0-9a-f]{64})"`)
)

// machines are the platforms' names in wheels.
var machines = map[string]string{"linux/amd64": "_x86_64.whl", "linux/arm64": "_aarch64.whl"}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pyspy DIR PLATFORM...")
		os.Exit(2)
	}
	for _, platform := range os.Args[2:] {
		if err := write(os.Args[1], platform); err != nil {
			fmt.Fprintf(os.Stderr, "fetching %s for %s: %v\n", program, platform, err)
			os.Exit(1)
		}
	}
}

// write writes DIR/OS-ARCHITECTURE/py-spy and, of all platforms, DIR/licenses/py-spy@VERSION.
func write(dir, platform string) error {
	lock, err := os.ReadFile(lockFile)
	if err != nil {
		return err
	}
	found := locked.FindStringSubmatch(string(lock))
	if found == nil {
		return fmt.Errorf("%s does not lock it", lockFile)
	}
	version, hashes := found[1], strings.Split(strings.TrimPrefix(found[2], " --hash=sha256:"), " --hash=sha256:")
	wheel, err := fetch(platform, version, hashes)
	if err != nil {
		return err
	}
	files, err := zip.NewReader(bytes.NewReader(wheel), int64(len(wheel)))
	if err != nil {
		return err
	}
	// https://packaging.python.org/en/latest/specifications/binary-distribution-format/
	stem, terms := "py_spy-"+version, filepath.Join(dir, "licenses", program+"@"+version)
	for from, to := range map[string]string{
		stem + ".data/scripts/" + program:                        filepath.Join(dir, strings.ReplaceAll(platform, "/", "-"), program),
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
func fetch(platform, version string, hashes []string) ([]byte, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cached := filepath.Join(cache, "ml-dev-env", fmt.Sprintf("py-spy-%s-%s.whl", version, strings.TrimPrefix(platform, "linux/")))
	wheel, err := os.ReadFile(cached)
	if err == nil && isLocked(wheel, hashes) {
		return wheel, nil
	}
	if wheel, err = download(platform, hashes); err != nil {
		return nil, fmt.Errorf("%w\nset PIP_INDEX_URL to an index that this machine reaches, or copy the wheel to %s", err, cached)
	}
	return wheel, errors.Join(os.MkdirAll(filepath.Dir(cached), 0o755), os.WriteFile(cached, wheel, 0o644))
}

func isLocked(wheel []byte, hashes []string) bool {
	return slices.Contains(hashes, fmt.Sprintf("%x", sha256.Sum256(wheel)))
}

func download(platform string, hashes []string) ([]byte, error) {
	index := packageIndex
	if other := os.Getenv("PIP_INDEX_URL"); other != "" {
		index = strings.TrimSuffix(other, "/") + "/"
	}
	page, err := url.Parse(index + program + "/")
	if err != nil {
		return nil, err
	}
	list, err := get(page, maxPage)
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
		wheel, err := get(address, maxWheel)
		if err == nil && !isLocked(wheel, hashes) {
			err = fmt.Errorf("%s has another hash than %s", link[2], lockFile)
		}
		return wheel, err
	}
	return nil, fmt.Errorf("%s has no wheel with a hash of %s", page.Redacted(), lockFile)
}

func get(address *url.URL, most int64) ([]byte, error) {
	response, err := http.Get(address.String())
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
