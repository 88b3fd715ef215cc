// SPDX-License-Identifier: Apache-2.0

// Package rootfs creates root file systems of container images from Debian packages, from the descriptions in the
// folders below images/.
package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/image"
)

// suite is the Debian release of every image.
const suite = "trixie"

// recipe is part of the key. Change it if this package creates a different image from the same folder.
const recipe = "3"

// Recipe is a folder that describes an image:
//
//	packages        Debian packages of the root file system
//	customize.sh    run in it at the end (optional)
//	trust           the image trusts the certificates of this machine (optional)
//	base            instead of these two: the name of the folder beside it whose image it stands on
//	build-packages  packages that only install.sh needs (optional)
//	install.sh      run with those; what it puts in /opt is a layer of its own (optional)
//
// With a base, the packages are installed before install.sh runs, and the layer contains all changes of both. The
// folder is mounted at /image while install.sh runs.
type Recipe struct {
	Dir string
	// CABundle is the file of certificates that this machine trusts: package mirrors may need them.
	CABundle string
}

// Key returns a hash of all files that the image is built from.
func (r Recipe) Key() (string, error) {
	files, err := filepath.Glob(filepath.Join(r.Dir, "*"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("reading the image description %s: the folder is missing or empty", r.Dir)
	}
	if r.has("trust") {
		files = append(files, r.CABundle)
	}
	hash := sha256.New()
	fmt.Fprintln(hash, suite, recipe)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %x\n", filepath.Base(file), sha256.Sum256(content))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Base returns the name of the folder of the base image, "" for none.
func (r Recipe) Base() (string, error) {
	if !r.has("base") {
		return "", nil
	}
	name, err := os.ReadFile(filepath.Join(r.Dir, "base"))
	return strings.TrimSpace(string(name)), err
}

// Build creates the image; on is its base, or nil. It works in the folder work, where the files of its layers stay until
// the image is stored, and writes the output of its commands to log.
func (r Recipe) Build(ctx context.Context, work string, on v1.Image, config v1.Config, log io.Writer) (v1.Image, error) {
	base := filepath.Join(work, "base")
	var layers []v1.Layer
	if on != nil {
		var err error
		if layers, err = unpack(ctx, on, base, log); err != nil {
			return nil, err
		}
	} else {
		if err := r.bootstrap(ctx, base, log); err != nil {
			return nil, err
		}
		layer, err := image.FolderLayer(work, base, ".")
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	if r.has("install.sh") {
		packages, part := "build-packages", "opt"
		if on != nil && r.has("packages") {
			packages, part = "packages", "."
		}
		upper, err := r.install(ctx, work, base, packages, log)
		if err != nil {
			return nil, err
		}
		layer, err := image.FolderLayer(work, upper, part)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return image.Assemble(config, layers...)
}

// unpack puts the files of an image into a folder, and returns its layers. No layer may delete files of an earlier one.
func unpack(ctx context.Context, img v1.Image, target string, log io.Writer) ([]v1.Layer, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return nil, err
	}
	for _, layer := range layers {
		content, err := layer.Uncompressed()
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "tar", "--extract", "--numeric-owner", "--preserve-permissions", "--directory="+target)
		cmd.Stdin = content
		if err := errors.Join(run(ctx, "tar", log, cmd), content.Close()); err != nil {
			return nil, err
		}
	}
	return layers, nil
}

func (r Recipe) has(file string) bool {
	_, err := os.Stat(filepath.Join(r.Dir, file))
	return err == nil
}

// list reads a file of names, one per line, with # comments.
func (r Recipe) list(file string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(r.Dir, file))
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		names = append(names, strings.Fields(line)...)
	}
	return names, nil
}

func (r Recipe) bootstrap(ctx context.Context, target string, log io.Writer) error {
	packages, err := r.list("packages")
	if err != nil {
		return err
	}
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory",
		"--include=" + strings.Join(packages, ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
	}
	if r.has("customize.sh") {
		args = append(args, `--customize-hook=chroot "$1" sh -eu < `+filepath.Join(r.Dir, "customize.sh"))
	}
	if r.has("trust") {
		args = append(args, `--customize-hook=cp "`+r.CABundle+`" "$1/etc/ssl/certs/ca-certificates.crt"`)
	}
	args = append(args, suite, target)
	if mirror := hostMirror(ctx); mirror != "" {
		args = append(args, mirror)
	}
	return run(ctx, "mmdebstrap", log, isolated(ctx, append([]string{"mmdebstrap"}, args...)...))
}

// isolated returns a command in mount and process namespaces of its own. When it ends or is killed, its mounts and all
// processes that it started are gone.
func isolated(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}, args...)...)
}

// hostMirror returns the Debian mirror that the host's own apt uses, or "".
func hostMirror(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE)", "Identifier: Packages", "Origin: Debian").Output()
	if err != nil {
		return ""
	}
	for site := range strings.FieldsSeq(string(out)) {
		// Other addresses mean files of this machine, such as mirror+file:/etc/apt/mirrors/debian.list.
		if strings.HasPrefix(site, "http") && !strings.Contains(site, "security") {
			return site
		}
	}
	return ""
}

// installScript runs in a command of isolated.
const installScript = `
mount -t overlay overlay -o "lowerdir=$BASE,upperdir=$UPPER,workdir=$WORK" "$MERGED"
mount -t proc proc "$MERGED/proc"
mount --bind /dev "$MERGED/dev"
mkdir -p "$MERGED/image"
mount --bind "$IMAGE" "$MERGED/image"
cp -L /etc/resolv.conf "$MERGED/etc/resolv.conf"
cp "$CABUNDLE" "$MERGED/etc/ssl/certs/ca-certificates.crt"
if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$MERGED/etc/pip.conf"; fi
if [ -n "$PACKAGES" ]; then
  chroot "$MERGED" apt-get update -q
  chroot "$MERGED" apt-get install -q -y --no-install-recommends $PACKAGES
fi
exec chroot "$MERGED" sh -eu /image/install.sh
`

// leftovers are files that installScript and apt leave, and that the layer does not keep.
var leftovers = []string{"image", "etc/resolv.conf", "etc/ssl", "etc/pip.conf", "var/lib/apt", "var/cache", "var/log"}

// install installs the packages of the file packages, runs install.sh, and returns the folder with all changes.
func (r Recipe) install(ctx context.Context, work, base, packages string, log io.Writer) (upper string, err error) {
	env := map[string]string{"BASE": base, "IMAGE": r.Dir, "CABUNDLE": r.CABundle, "PACKAGES": ""}
	for name, dir := range map[string]string{"UPPER": "upper", "WORK": "overlay", "MERGED": "merged"} {
		env[name] = filepath.Join(work, dir)
		if err := os.MkdirAll(env[name], 0o755); err != nil {
			return "", err
		}
	}
	if r.has(packages) {
		names, err := r.list(packages)
		if err != nil {
			return "", err
		}
		env["PACKAGES"] = strings.Join(names, " ")
	}
	cmd := isolated(ctx, "sh", "-eu", "-c", installScript)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"DEBIAN_FRONTEND=noninteractive", "LANG=C.UTF-8", "HOME=/root",
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// The build uses the package mirrors and proxies of this machine's environment. The image does not keep them.
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
		"http_proxy", "https_proxy", "no_proxy"} {
		if value := os.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(cmd.Env, "PIP_CERT=/etc/ssl/certs/ca-certificates.crt", "PIP_DISABLE_PIP_VERSION_CHECK=1")
	err = run(ctx, "install.sh", log, cmd)
	for _, path := range leftovers {
		err = errors.Join(err, os.RemoveAll(filepath.Join(env["UPPER"], path)))
	}
	return env["UPPER"], err
}

func run(ctx context.Context, name string, log io.Writer, cmd *exec.Cmd) error {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, &said), io.MultiWriter(log, &said)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("%s: %w\n%s", name, err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
	return nil
}
