// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	mldevenv "github.com/ml-dev-env/ml-dev-env"
	"github.com/ml-dev-env/ml-dev-env/internal/cluster"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// repositoryWith makes a git repository with the files, whose names end in / for folders.
func repositoryWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "init", "--quiet").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// What .gitignore leaves out is counted before the run, and named by a script that misses it.
func TestFilesLeftOut(t *testing.T) {
	dir := repositoryWith(t, map[string]string{"train.py": "", ".gitignore": "data/*.bin\n", "data/train.bin": "12345678",
		"data/val.bin": "1"})
	packed, err := packFolder(t.Context(), &v1.Pipeline{}, map[string][]string{"repo-url": {dir}, "script": {"train.py"}})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.remove()
	var out bytes.Buffer
	packed.sayLeftOut(&out)
	if want := "Left out by .gitignore and .mlenvignore: 2 files, 9 B.\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	const error = "rank 0 failed: FileNotFoundError: [Errno 2] No such file or directory: "
	for message, want := range map[string]string{
		error + "'data/train.bin' (train.py:3)":                "echo '!data/train.bin' >> " + dir + "/.mlenvignore   # ",
		error + "'/workspace/.mlenv/work/my-run/data/val.bin'": "echo '!data/val.bin' >> " + dir + "/.mlenvignore   # ",
		error + "'data/other.bin'":                             "",
		error + "'train.py'":                                   "",
		error + "'../data/train.bin'":                          "",
		error + "'/etc/data/train.bin'":                        "",
		"rank 0 failed: ValueError: no data/train.bin":         "",
	} {
		if got := packed.include(message); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
	if got := (*packedFolder)(nil).include(error + "'data/train.bin'"); got != "" {
		t.Errorf("a repository: got %q", got)
	}
}

// More nodes than the cluster file has are refused before anything is created, after the files that are left out are told.
func TestTooManyNodes(t *testing.T) {
	dir := repositoryWith(t, map[string]string{"train.py": "", ".gitignore": "*.bin\n", "data/train.bin": "12345678"})
	file, err := os.ReadFile("../../../clusters/barcelona.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pipeline := newParams(mldevenv.Bundle).pipeline.DeepCopy()
	pipeline.Namespace = "ns"
	objects := kubefake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: cluster.ConfigMapPrefix + "barcelona"},
		Data:       map[string]string{"cluster.yaml": string(file)}})
	tekton := fake.NewSimpleClientset(pipeline)
	tekton.PrependReactor("create", "pipelineruns", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("a run was created")
	})
	var told bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(t.Output())
	cmd.SetErr(&told)
	o := runOptions{runName: "mine", values: map[string][]string{"repo-url": {dir}, "script": {"train.py"}, "nodes": {"6"},
		"cluster": {"barcelona"}}}
	err = o.start(cmd, &kube.Clients{Kube: objects, Tekton: tekton, Namespace: "ns"}, nil)
	if err == nil || !strings.Contains(err.Error(), "nodes: 6: the cluster file of barcelona lists 5 nodes in nodes.gpu_nodes") {
		t.Errorf("got %v, want that there are 5 nodes", err)
	}
	if !strings.Contains(told.String(), "Left out by .gitignore and .mlenvignore: 1 file, 8 B.\n") {
		t.Errorf("told %q, want the file that is left out", told.String())
	}
}

// A folder with LFS pointers is refused, as a repository is.
func TestFolderWithPointers(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a1", 32) + "\nsize 4999819336\n"
	dir := repositoryWith(t, map[string]string{"train.py": "", "model.safetensors": pointer, ".mlenvignore": "", "other/x.bin": pointer})
	pack := func() error {
		packed, err := packFolder(t.Context(), &v1.Pipeline{}, map[string][]string{"repo-url": {dir}, "script": {"train.py"}})
		if err == nil {
			packed.remove()
		}
		return err
	}
	err := pack()
	if fail.ReasonOf(err) != fail.LFSPointers || !strings.Contains(err.Error(), `"model.safetensors", "other/x.bin"`) ||
		!strings.HasPrefix(fail.NextOf(err), "git lfs pull") {
		t.Errorf("got %v; next: %s; want the pointers", err, fail.NextOf(err))
	}
	if err := os.WriteFile(filepath.Join(dir, ".mlenvignore"), []byte("*.bin\n*.safetensors\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pack(); err != nil {
		t.Errorf("without them: %v", err)
	}
}

// A folder whose links lead into the rest of its repository is sent as a whole.
func TestFolderWithLinksOutOfIt(t *testing.T) {
	dir := repositoryWith(t, map[string]string{"examples/train.py": "", "lib/a.py": ""})
	if err := os.Symlink("../lib", filepath.Join(dir, "examples", "lib")); err != nil {
		t.Fatal(err)
	}
	for top, want := range map[string]string{
		filepath.Join(dir, "examples"): "mlenv run " + dir + " examples/train.py   # the whole repository; or lines in .mlenvignore",
		repositoryLess(t):              "lines in .mlenvignore",
	} {
		_, err := packFolder(t.Context(), &v1.Pipeline{}, map[string][]string{"repo-url": {top}, "script": {"train.py"}})
		if fail.ReasonOf(err) != fail.UnsafeTree || !strings.HasPrefix(fail.NextOf(err), want) {
			t.Errorf("%s: got %v (%s), want %s", top, err, fail.NextOf(err), want)
		}
	}
}

func repositoryLess(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "etc")); err != nil {
		t.Fatal(err)
	}
	return dir
}
