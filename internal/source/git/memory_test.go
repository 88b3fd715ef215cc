// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// heavyVariable makes TestFetchMemory as large as the required maximum: 2 GB in files of 100 MB, and an LFS object of 1
// GB.
const heavyVariable = "MLENV_TEST_HEAVY"

// childVariable makes this binary only fetch. Its value is the URL, the CA file and the folder, a line each.
const childVariable = "MLENV_TEST_FETCH"

func TestMain(m *testing.M) {
	Helper()
	if underRace() {
		// git runs this program as its helper, which inherits the limit.
		usualLimits.memory, lookLimits.memory = math.MaxInt64, math.MaxInt64
	}
	if words := os.Getenv(childVariable); words != "" {
		if err := fetchAlone(strings.Split(words, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// fetchAlone fetches, and prints the peak memory of this process and of the largest of its children.
func fetchAlone(words []string) error {
	auth, err := Auth{}.WithCAFile(words[1])
	if err != nil {
		return err
	}
	log := command.TextLog(os.Stdout)
	if _, err := Fetch(context.Background(), log, words[2], Source{URL: words[0], LFS: true, Auth: auth}); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	var children syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children); err != nil {
		return err
	}
	fmt.Printf("%s\nChildren:\t%d kB\n", status, children.Maxrss)
	return err
}

// underRace reports whether this program contains the race detector, which needs several times the memory.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// noise returns content that cannot be compressed. The same seed gives the same content.
func noise(seed byte, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), size)
}

func putNoise(t *testing.T, file string, seed byte, size int64, end string) {
	t.Helper()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, io.MultiReader(noise(seed, size), strings.NewReader(end))); err != nil {
		t.Fatal(err)
	}
}

// Memory does not grow with the files: the default test has a tenth of the heavy one's content, and the same limit.
func TestFetchMemory(t *testing.T) {
	needLFS(t)
	if testing.Short() || underRace() {
		t.Skip("writes hundreds of megabytes, and the race detector's memory would count")
	}
	const maxResident = 128 << 20
	files, fileSize, lfsSize := 5, int64(40_000_000), int64(100_000_000)
	if os.Getenv(heavyVariable) != "" {
		files, fileSize, lfsSize = 20, 100_000_000, 1_000_000_000
	}
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	git(t, repo, "", "config", "core.compression", "0")
	git(t, repo, "", "config", "core.bigFileThreshold", "1m")
	for i := range files {
		putNoise(t, filepath.Join(repo, fmt.Sprint("file", i)), byte(i), fileSize, "")
	}
	server := newWebServer(t, root)
	server.open = true
	hash := sha256.New()
	if _, err := io.Copy(hash, noise(200, lfsSize)); err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(hash.Sum(nil))
	server.objects[id] = nil
	server.lfsAnswer = func(w http.ResponseWriter, _ string) { _, _ = io.Copy(w, noise(200, lfsSize)) }
	put(t, repo, "model.bin", pointerTo(id, lfsSize))
	commit(t, repo, "first")

	dir := t.TempDir()
	start := time.Now()
	resident := fetchResident(t, server, dir)
	t.Logf("%d files of %d MB and an LFS object of %d MB: peak of %d MiB in %s",
		files, fileSize/1e6, lfsSize/1e6, resident>>20, time.Since(start).Round(time.Millisecond))
	if resident > maxResident {
		t.Errorf("resident memory: got %d MiB: want at most %d", resident>>20, maxResident>>20)
	}
	for i := range files {
		wantNoise(t, filepath.Join(dir, fmt.Sprint("file", i)), byte(i), fileSize)
	}
	wantNoise(t, filepath.Join(dir, "model.bin"), 200, lfsSize)
}

// If a server stores large files as deltas of each other, a file is in memory at most three times: the base, the delta and
// the result.
func TestFetchMemoryOfDeltas(t *testing.T) {
	if testing.Short() || underRace() {
		t.Skip("writes hundreds of megabytes, and the race detector's memory would count")
	}
	const fileSize = 60_000_000
	const maxResident = 3*fileSize + 64<<20
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	for i := range 2 {
		putNoise(t, filepath.Join(repo, fmt.Sprint("file", i)), 1, fileSize, fmt.Sprint("end ", i))
	}
	git(t, repo, "", "config", "core.compression", "0")
	commit(t, repo, "first")
	git(t, repo, "", "repack", "-adfq", "--window=1")
	server := newWebServer(t, root)
	server.open = true
	dir := t.TempDir()
	resident := fetchResident(t, server, dir)
	if resident > maxResident {
		t.Errorf("resident memory: got %d MiB: want at most %d", resident>>20, maxResident>>20)
	}
}

// A small pack can contain more than any disk can hold: the same content under many names.
func TestFetchLimitsDisk(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	blob := git(t, repo, strings.Repeat("0", 1<<20), "hash-object", "-w", "--stdin")
	var entries []string
	for i := range 100 {
		entries = append(entries, fmt.Sprintf("100644 %s copy%02d", blob, i))
	}
	commitTree(t, repo, entries...)
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth = server.goodAuth(t)
	source.limits = usualLimits
	const diskForTheFiles = 50 << 20
	source.limits.disk = diskForTheFiles
	_, _, _, err := fetchInto(t, source)
	wantFailure(t, err, fail.DiskFull, "the repository needs more than 52.4 MB of disk", "/datasets")
}

// The fetch stops a server that sends without an end.
func TestFetchLimitsPack(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	git(t, repo, "", "config", "core.compression", "0")
	putNoise(t, filepath.Join(repo, "large"), 1, 64<<20, "")
	commit(t, repo, "first")
	server := newWebServer(t, root)
	source := server.source("repo", "")
	source.Auth = server.goodAuth(t)
	source.limits = usualLimits
	const diskForThePack = 8 << 20
	source.limits.disk = diskForThePack
	_, _, _, err := fetchInto(t, source)
	wantFailure(t, err, fail.DiskFull, "the repository needs more than", "/datasets")
}

// git fails with a message if it would need too much memory.
func TestFetchLimitsMemory(t *testing.T) {
	root := t.TempDir()
	repo := newRepository(t, root, "repo")
	for i := range 2 {
		putNoise(t, filepath.Join(repo, fmt.Sprint("file", i)), 1, 32<<20, fmt.Sprint("end ", i))
	}
	git(t, repo, "", "config", "core.compression", "0")
	commit(t, repo, "first")
	git(t, repo, "", "repack", "-adfq", "--window=1")
	server := newWebServer(t, root)
	server.open = true // this program, as git's helper for passwords, may not fit into so little
	source := server.source("repo", "")
	source.Auth = server.auth(t, nil)
	source.limits = usualLimits
	const memoryOfGit = 48 << 20
	source.limits.memory = memoryOfGit
	_, _, _, err := fetchInto(t, source)
	wantFailure(t, err, fail.RepositoryUnavailable, "git needs more than 48 MiB of memory", "Git LFS")
}

// fetchResident fetches in a child process, and returns the sum of two peaks of resident memory in bytes: the child's, and the
// peak of git's largest process.
func fetchResident(t *testing.T, server *webServer, dir string) int64 {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), childVariable + "=" + strings.Join([]string{server.URL + "/repo", server.caFile(t), dir},
		"\n")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	peaks := regexp.MustCompile(`(?:VmHWM|Children):\s+(\d+) kB`).FindAllSubmatch(out, -1)
	if len(peaks) != 2 {
		t.Skipf("this system does not report a process's peak memory: %s", out)
	}
	before, _, _ := strings.Cut(string(out), "Name:")
	t.Log(before)
	var sum int64
	for _, peak := range peaks {
		kib, err := strconv.ParseInt(string(peak[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", peak[0])
		sum += kib << 10
	}
	return sum
}

func wantNoise(t *testing.T, file string, seed byte, size int64) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	got, want := sha256.New(), sha256.New()
	if _, err := io.Copy(got, in); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(want, noise(seed, size)); err != nil {
		t.Fatal(err)
	}
	if string(got.Sum(nil)) != string(want.Sum(nil)) {
		t.Errorf("%s: got other content than was committed", filepath.Base(file))
	}
}
