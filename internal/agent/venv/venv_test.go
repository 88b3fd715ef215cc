package venv

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// In many images Python is in a virtual environment. The virtual environment for the requirements must include that one's
// packages.
func TestVenvHasPackagesOfImage(t *testing.T) {
	dir := t.TempDir()
	image, made, requirements := filepath.Join(dir, "image"), filepath.Join(dir, "venvs", "made"), filepath.Join(dir, "requirements.txt")
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
	for file, content := range map[string]string{filepath.Join(packages, "of_image.py"): "name = 'of the image'\n", requirements: ""} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(image, "bin")+":"+os.Getenv("PATH"))
	var stderr strings.Builder
	for range 2 {
		if err := Make(made, requirements, io.Discard, &stderr); err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
	}
	what, err := exec.Command("python3", "-c", Identify).Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, err = Find(made, what)
	if err != nil {
		t.Fatal(err)
	}
	if got := python(filepath.Join(dir, "bin", "python3"), "-c", "import of_image; print(of_image.name)"); got != "of the image" {
		t.Errorf("got %q", got)
	}
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

func TestCollect(t *testing.T) {
	folder := t.TempDir()
	name := func(digit string) string { return filepath.Join(folder, strings.Repeat(digit, 64)) }
	idle := func() bool { return false }
	old, older := stand(t, name("1"), "3.12", 2*month), stand(t, name("1"), "3.13", 3*month)
	recent := stand(t, name("2"), "3.12", time.Hour)
	// What pip left when it was killed, what an earlier version has made, and what is not ours.
	killed, before, foreign := name("3")+"-"+strings.Repeat("a", 16)+".123", name("4"), filepath.Join(folder, "mine")
	for _, dir := range []string{killed, before, foreign} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		age(t, dir, 4*month)
	}
	elsewhere := filepath.Join(t.TempDir(), "precious")
	if err := errors.Join(os.Mkdir(elsewhere, 0o755), os.Symlink(elsewhere, name("5")+"-"+strings.Repeat("b", 16))); err != nil {
		t.Fatal(err)
	}
	if removed, err := Collect(filepath.Join(folder, "none"), 0, month, idle); err != nil || len(removed) > 0 {
		t.Errorf("without requirements: removed %v, %v", removed, err)
	}
	if removed, err := Collect(folder, 1, month, func() bool { return true }); err != nil || len(removed) > 0 {
		t.Errorf("while a job runs: removed %v, %v; want nothing", removed, err)
	}
	if removed, err := Collect(folder, 2, month, idle); err != nil || len(removed) != 3 {
		t.Errorf("removed %v, %v; want all but the last two", removed, err)
	}
	for path, want := range map[string]bool{recent: true, old: true, older: false, killed: false, before: false, foreign: true, elsewhere: true} {
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

// Two pips without locks install the same: the first one stays, also if the second one publishes later.
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
