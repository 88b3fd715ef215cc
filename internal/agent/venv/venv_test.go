// SPDX-License-Identifier: Apache-2.0

package venv

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMake has the real pip. In many images Python is in a virtual environment: the one for the requirements must include that one's
// packages. What pip and builds write beside a repository's files does not reach its tree, in which other jobs
// may be running, and what they install does not need the tree.
func TestMake(t *testing.T) {
	dir := t.TempDir()
	image, tree, base := filepath.Join(dir, "image"), filepath.Join(dir, "tree"), filepath.Join(dir, "venvs", "made")
	python := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", program, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	python("python3", "-m", "venv", "--without-pip", image)
	packages := python(filepath.Join(image, "bin", "python3"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
	write(t, packages, map[string]string{"of_image.py": "name = 'of the image'\n"})
	want := map[string]string{"requirements.txt": "-e .\n./other\n"}
	for name, content := range packageOfRepository {
		want[name] = content
		want["other/"+strings.ReplaceAll(name, "mine", "other")] = strings.ReplaceAll(content, "mine", "other")
	}
	write(t, tree, want)
	t.Setenv("PATH", filepath.Join(image, "bin")+":"+os.Getenv("PATH"))
	t.Chdir(tree)
	var stderr strings.Builder
	for range 2 {
		if err := Make(base, "requirements.txt", &stderr, &stderr); err != nil {
			t.Errorf("%v\n%s", err, stderr.String())
		}
	}
	if diff := cmp.Diff(want, read(t, tree)); diff != "" {
		t.Fatalf("the tree is not as it was (-want +got):\n%s", diff)
	}
	// It may be collected, and another tree be synced, while the environment stays.
	t.Chdir(dir)
	if err := os.RemoveAll(tree); err != nil {
		t.Fatal(err)
	}
	what, err := exec.Command("python3", "-c", Identify).Output()
	if err != nil {
		t.Fatal(err)
	}
	made, err := Find(base, what)
	if err != nil {
		t.Fatal(err)
	}
	const program = "import of_image, mine.here, other.here; print(of_image.name, mine.here.name, other.here.name)"
	if got := python(filepath.Join(made, "bin", "python3"), "-c", program); got != "of the image of the repository of the repository" {
		t.Errorf("got %q", got)
	}
}

// A Python of which no package has loaded Python's own modules at its start, as those of virtual environments since 3.12, finds none of
// them in the folder in which pip runs.
func TestPipRunsNothingOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"importlib.py": "raise SystemExit('of the tree')\n"})
	out, err := commandIn(dir, "python3", "-S", "-c", pip, "--version").CombinedOutput()
	if err == nil || !strings.HasSuffix(string(out), ": No module named pip\n") {
		t.Errorf("got %v: %s", err, out)
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o444)); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the files of a folder, and its folders that builds make.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(dir, path)
		if err != nil || relErr != nil || entry.IsDir() {
			if filepath.Ext(name) == ".egg-info" || filepath.Base(name) == "__pycache__" {
				files[name] = "a folder"
			}
			return errors.Join(err, relErr)
		}
		content, err := os.ReadFile(path)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// stand makes a virtual environment as Make does, last used some time ago.
func stand(t *testing.T, base, python string, ago time.Duration) (dir string) {
	t.Helper()
	link := linkOf(base, []byte(python))
	dir, err := os.MkdirTemp(filepath.Dir(link), filepath.Base(link)+".*")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, completeFile), []byte(python), 0o644), use(dir), publish(link, dir)); err != nil {
		t.Fatal(err)
	}
	age(t, dir, ago)
	return dir
}

func age(t *testing.T, dir string, ago time.Duration) {
	t.Helper()
	then := time.Now().Add(-ago)
	for _, path := range []string{filepath.Join(dir, completeFile), filepath.Join(dir, usedFile), dir} {
		if err := os.Chtimes(path, then, then); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

const month = 30 * 24 * time.Hour

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

// Options of pip that the file's format does not have are in a comment; ordinary comments are none. The file may be a link in the tree.
func TestOptions(t *testing.T) {
	for content, want := range map[string]string{
		"# pip install --pre torch --index-url https://example.com\ntorch\n": "",
		"# mlenv: pip --no-build-isolation --config-settings=a=b \r\nflash-attn\n# mlenv: pip --no-deps\n": "--no-build-isolation " +
			"--config-settings=a=b --no-deps",
		"# mlenv: pip --target=/tmp/x\n":        "error",
		"# mlenv: pip -r other.txt\n":           "error",
		" # mlenv: pip --no-build-isolation\nx": "",
	} {
		t.Chdir(t.TempDir())
		write(t, ".", map[string]string{"gpu/requirements.txt": content})
		if err := os.Symlink("gpu/requirements.txt", "requirements.txt"); err != nil {
			t.Fatal(err)
		}
		options, err := optionsIn("requirements.txt")
		got := strings.Join(options, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %q, %v; want %q", content, got, err, want)
		}
	}
}

func TestCollect(t *testing.T) {
	folder := t.TempDir()
	name := func(digit string) string { return filepath.Join(folder, strings.Repeat(digit, 64)) }
	idle := func() bool { return false }
	old, older := stand(t, name("1"), "3.12", 2*month), stand(t, name("1"), "3.13", 3*month)
	recent := stand(t, name("2"), "3.12", time.Hour)
	// What pip left when it was killed, and what is not ours.
	killed, foreign := name("3")+"-"+strings.Repeat("a", 16)+".123", filepath.Join(folder, "mine")
	for _, dir := range []string{killed, foreign} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		age(t, dir, 4*month)
	}
	elsewhere := filepath.Join(t.TempDir(), "precious")
	if err := errors.Join(os.Mkdir(elsewhere, 0o755), os.Symlink(elsewhere, name("4")+"-"+strings.Repeat("b", 16))); err != nil {
		t.Fatal(err)
	}
	if removed, err := Collect(filepath.Join(folder, "none"), 0, month, idle); err != nil || len(removed) > 0 {
		t.Errorf("without requirements: removed %v, %v", removed, err)
	}
	if removed, err := Collect(folder, 1, month, func() bool { return true }); err != nil || len(removed) > 0 {
		t.Errorf("while a job runs: removed %v, %v; want nothing", removed, err)
	}
	if removed, err := Collect(folder, 2, month, idle); err != nil || len(removed) != 2 {
		t.Errorf("removed %v, %v; want all but the last two", removed, err)
	}
	for path, want := range map[string]bool{recent: true, old: true, older: false, killed: false, foreign: true, elsewhere: true} {
		if there(path) != want {
			t.Errorf("%s is there: %v, want %v", path, !want, want)
		}
	}
	if _, err := Find(name("1"), []byte("3.13")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("finding what is removed: %v", err)
	}
	if _, err := Find(name("1"), []byte("3.12")); err != nil {
		t.Error(err)
	}
	// That was a use.
	if removed, err := Collect(folder, 0, month, idle); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v; want nothing", removed, err)
	}
}

// A job that begins while Collect looks keeps its virtual environment.
func TestCollectSeesALateUse(t *testing.T) {
	folder := t.TempDir()
	base := filepath.Join(folder, strings.Repeat("1", 64))
	dir := stand(t, base, "3.12", 2*month)
	asked := 0
	busy := func() bool {
		if asked++; asked == 1 {
			if _, err := Find(base, []byte("3.12")); err != nil {
				t.Error(err)
			}
		}
		return false
	}
	if removed, err := Collect(folder, 0, month, busy); err != nil || len(removed) > 0 || asked != 2 {
		t.Errorf("removed %v, %v after %d questions", removed, err, asked)
	}
	if found, err := Find(base, []byte("3.12")); err != nil || found != dir {
		t.Errorf("found %s, %v; want %s", found, err, dir)
	}
}

// Two pips without locks install the same: the first one stays, even if the second one publishes later.
func TestPublishKeepsTheFirst(t *testing.T) {
	base := filepath.Join(t.TempDir(), strings.Repeat("1", 64))
	first := stand(t, base, "3.12", 0)
	second := stand(t, base, "3.12", 0)
	if found, err := Find(base, []byte("3.12")); err != nil || found != first || there(second) {
		t.Errorf("found %s, %v; want %s alone", found, err, first)
	}
	// One that lost its mark is replaced, and stays for whoever uses it.
	if err := os.Remove(filepath.Join(first, completeFile)); err != nil {
		t.Fatal(err)
	}
	third := stand(t, base, "3.12", 0)
	if found, err := Find(base, []byte("3.12")); err != nil || found != third || !there(first) {
		t.Errorf("found %s, %v; want %s, and the first one untouched", found, err, third)
	}
}

// packageOfRepository is a repository with a package, as its requirements install it with "-e ." or ".". Its build writes into the folder
// in which it runs, as setuptools does. random.py is a module of the user's that has the name of one of Python's, which pip imports.
var packageOfRepository = map[string]string{
	"random.py":        "raise SystemExit('the module of the repository')\n",
	"src/mine/here.py": "name = 'of the repository'\n",
	"run.sh":           "true\n",
	"pyproject.toml":   "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['build']\n",
	"build/backend.py": `import os, zipfile

def build(folder, files):
    os.makedirs("mine.egg-info", exist_ok=True)
    with open("run.sh", "a") as changed:
        changed.write("built\n")
    info = "mine-1.dist-info/"
    files = {
        info + "METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
        info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", info + "RECORD": "", **files,
    }
    with zipfile.ZipFile(folder + "/mine-1-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return "mine-1-py3-none-any.whl"

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return build(folder, {"mine/here.py": open("src/mine/here.py").read()})

def build_editable(folder, config_settings=None, metadata_directory=None):
    return build(folder, {"mine.pth": os.path.abspath("src") + "\n"})
`,
}

// TestPipWritesNothingIntoTheTree has a stand-in for Python and pip: pip writes where it runs, and names that folder in what it installs.
func TestPipWritesNothingIntoTheTree(t *testing.T) {
	for _, tc := range []struct {
		name, requirements, installs string
		keeps                        bool
	}{
		{"path", "-e .\n", `echo "$PWD/src" > "$packages/mine.pth"`, true},
		{"finder", "-e .\n", `echo "MAPPING = {'mine': '$PWD/src/mine'}" > "$packages/__editable___mine_1_finder.py"`, true},
		{"link", "-e .\n", `ln -s "$PWD/src/mine" "$packages/mine"`, true},
		{"copied", ".\n", `mkdir "$packages/mine" && cp src/mine/here.py "$packages/mine"`, false},
		{"index", "einops\n", ":", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tree, base := filepath.Join(dir, "tree"), filepath.Join(dir, "venvs", strings.Repeat("1", 64))
			program := `#!/bin/sh
for last; do :; done
case $*/$# in
*import*os*/3) echo 3.13 ;;
-I\ -m\ venv\ *) mkdir -p "$last/bin" "$last/lib/python3.13/site-packages" && cp "$0" "$last/bin/python3" ;;
*pip*install*) packages=$(dirname "$0")/../lib/python3.13/site-packages
  mkdir mine.egg-info && echo built >> run.sh && cat "$last" > seen && ` + tc.installs + ` ;;
esac
`
			python := filepath.Join(dir, "bin", "python3")
			if err := errors.Join(os.Mkdir(filepath.Dir(python), 0o755), os.WriteFile(python, []byte(program), 0o755)); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", filepath.Dir(python)+":"+os.Getenv("PATH"))
			want := map[string]string{"requirements.txt": tc.requirements, "run.sh": "true\n", "src/mine/here.py": "name = 1\n"}
			write(t, tree, want)
			t.Chdir(tree)
			var output strings.Builder
			if err := Make(base, "requirements.txt", &output, &output); err != nil {
				t.Fatalf("%v\n%s", err, output.String())
			}
			if diff := cmp.Diff(want, read(t, tree)); diff != "" {
				t.Errorf("the tree is not as it was (-want +got):\n%s", diff)
			}
			made, err := Find(base, []byte("3.13\n"))
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(made); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o775 {
				t.Errorf("the folder is %v, %v; want it for the group, and what is made in it", info.Mode(), err)
			}
			if there(filepath.Join(made, repositoryCopy)) != tc.keeps {
				t.Errorf("the copy of the repository is kept: %v, want %v", !tc.keeps, tc.keeps)
			}
			if _, err := os.Stat(filepath.Join(made, repositoryCopy, "src/mine/here.py")); tc.keeps && err != nil {
				t.Error(err)
			}
		})
	}
}
