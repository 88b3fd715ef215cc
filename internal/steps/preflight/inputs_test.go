// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	tektonfake "github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/lease"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/run"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/test/agenttest"
)

// stutter matches "checking NAME: checking".
var stutter = regexp.MustCompile(`checking (\S+): checking`)

func TestMain(m *testing.M) {
	git.Helper()
	os.Exit(m.Run())
}

// gitServer serves a repository with train.py and src/other.py.
func gitServer(t *testing.T) (url string) {
	t.Helper()
	return gitServerOf(t, map[string]string{"train.py": "", "src/other.py": ""})
}

func gitServerOf(t *testing.T, files map[string]string) (url string) {
	t.Helper()
	root := t.TempDir()
	repo := filepath.Join(root, "model")
	if err := os.MkdirAll(filepath.Join(repo, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(repo, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
	runGit := func(args ...string) string {
		cmd := exec.Command("git",
			append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"}, args...)...)
		cmd.Env = environ
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	runGit("init", "-q")
	runGit("add", "-A")
	runGit("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",part") // a submodule
	runGit("commit", "-q", "-m", "first")
	runGit("config", "uploadpack.allowFilter", "true")
	backend := filepath.Join(runGit("--exec-path"), "git-http-backend")
	server := httptest.NewServer(&cgi.Handler{Path: backend, Stderr: io.Discard,
		Env: append(environ, "GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1")})
	t.Cleanup(server.Close)
	return server.URL + "/model"
}

// ownRun returns the PipelineRun to which preflight belongs.
func ownRun(t *testing.T, values map[string]string) *v1.PipelineRun {
	t.Helper()
	content, err := os.ReadFile("../../../pipelines/train-multi-node/train-multi-node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var pipeline v1.Pipeline
	if err := yaml.Unmarshal(content, &pipeline); err != nil {
		t.Fatal(err)
	}
	r := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "nccl-test", Name: "train-1", UID: "uid-1"}}
	r.Spec.PipelineRef = &v1.PipelineRef{Name: pipeline.Name}
	r.Status.PipelineSpec, r.Status.StartTime = &pipeline.Spec, &metav1.Time{Time: time.Now()}
	for name, value := range values {
		r.Spec.Params = append(r.Spec.Params, v1.Param{Name: name, Value: *v1.NewStructuredValues(value)})
	}
	return r
}

// inRun makes preflight a step of the run.
func inRun(r *v1.PipelineRun) func(*Deps, *Options) {
	return func(d *Deps, o *Options) {
		d.Clients.Tekton = tektonfake.NewSimpleClientset(r)
		o.Run = run.Flags{Name: r.Name, UID: string(r.UID)}
	}
}

func held(by string, kind string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nccl-test", Name: objects.DefaultName,
			Annotations: map[string]string{"ml-dev-env.github.io/holder-kind": kind}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &by},
	}
}

func TestInputsOfARun(t *testing.T) {
	url := gitServer(t)
	for _, test := range []struct {
		name   string
		values map[string]string
		change func(*world, *Deps, *Options)
		want   []want
		reason fail.Reason
	}{
		{"as they should be", map[string]string{"repo-url": url, "script": "src/other.py"}, nil, []want{
			{"params", OK, "2 values", ""},
			{"timeouts", OK, "long enough for a training of ", ""},
			{"secrets", OK, "exist", ""},
			{"repository", OK, url + " has commit ", ""},
			{"script", OK, "src/other.py is in the commit", ""},
			{"environment", OK, "ml-dev-env is free", ""},
		}, ""},
		{"all mistakes at once, also in the request", map[string]string{"repo-url": url, "script": "trian.py", "requirements": "pip.txt",
			"timeout": "24h", "launcher": "mpirun", "check-fabric": "True"},
			func(_ *world, d *Deps, o *Options) {
				o.Request.Nodes = 99
				d.Secrets = Secrets{Variables: []string{"RANK"}}
			}, []want{
				{"params", Blocked, `param launcher: "mpirun": want auto, deepspeed, torchrun, command, deepspeed-launcher or torchrun-launcher`,
					"oc describe pipeline"},
				{"params", Blocked, `param check-fabric: "True": want true or false`, ""},
				{"timeouts", Blocked, "pipeline 1h, want ", "--pipeline-timeout="},
				{"secrets", Blocked, "variable RANK: the launcher sets it", ""},
				{"script", Blocked, `"trian.py": it is not in commit`, "by its path from the top of the repository"},
				{"requirements", Blocked, `"pip.txt": it is not in commit`, ""},
				{"request", Blocked, "nodes: 99", "--nodes="},
			}, fail.InvalidInput},
		{"a folder, which mlenv run has examined", map[string]string{"repo-url": git.FolderScheme + strings.Repeat("a0", 32),
			"script": "train.py"}, nil,
			[]want{{"params", OK, "2 values", ""}, {"environment", OK, "ml-dev-env is free", ""}}, ""},
		{"no such branch", map[string]string{"repo-url": url, "script": "train.py", "revision": "mian"}, nil,
			[]want{{"repository", Blocked, "the nearest: branch main", "git ls-remote"}}, fail.RevisionNotFound},
		{"no such repository", map[string]string{"repo-url": url + "s", "script": "train.py"}, nil,
			[]want{{"repository", Blocked, "no repository there", "repo-url"}}, fail.RepositoryUnavailable},
		{"arguments in the script", map[string]string{"repo-url": url, "script": "train.py --epochs 3"}, nil,
			[]want{{"script", Blocked, "is not in commit", "train.py -- --epochs 3"}}, fail.ScriptNotFound},
		{"a module", map[string]string{"repo-url": url, "script": "-m src.other"}, nil,
			[]want{{"params", OK, "2 values", ""}, {"script", OK, "src/other.py is in the commit", ""}}, ""},
		{"a module of the image", map[string]string{"repo-url": url, "script": "-m torch.distributed.run"}, nil,
			[]want{{"params", OK, "2 values", ""}, {"repository", OK, "has commit", ""}}, ""},
		{"no such module", map[string]string{"repo-url": url, "script": "-m train.mian"}, nil,
			[]want{{"script", Blocked, `"-m train.mian": it is not in commit`, "by its path"}}, fail.ScriptNotFound},
		{"in a submodule", map[string]string{"repo-url": url, "script": "part/train.py"}, nil,
			[]want{{"script", OK, "part/train.py is in the commit", ""}}, ""},
		{"in a submodule that stays empty", map[string]string{"repo-url": url, "script": "part/train.py", "submodules": "false"}, nil,
			[]want{{"script", Blocked, `"part/train.py": it is in the submodule part, and param submodules is false`, "--param=submodules=true"}},
			fail.ScriptNotFound},
		{"a program in the image", map[string]string{"repo-url": url, "script": "nvidia-smi", "launcher": "command"}, nil,
			[]want{{"repository", OK, "has commit", ""}}, ""},
		{"a missing Secret", map[string]string{"repo-url": url, "script": "train.py"}, func(_ *world, d *Deps, _ *Options) {
			d.Secrets.Problems = []error{fail.Because(fail.InvalidInput, errors.New("reading Secret wandb: it does not exist"))}
		}, []want{{"secrets", Blocked, "reading Secret wandb", ""}, {"repository", OK, "has commit", ""}}, fail.InvalidInput},
		{"Secrets of another cluster file", map[string]string{"repo-url": url, "script": "train.py"}, func(_ *world, _ *Deps, o *Options) {
			o.Request.Cluster.Image.PullSecret, o.Request.Cluster.Notify.Secret = "quay", "slack"
		}, []want{
			{"secrets", Warning, "param pull-secret is none by default, from the cluster file that was installed last; image.pull_secret of " +
				"barcelona.yaml is quay", "--param=pull-secret=quay"},
			{"secrets", Warning, "param notify is none by default", "--param=notify=slack"},
		}, ""},
		{"Secrets that the run names", map[string]string{"repo-url": url, "script": "train.py", "pull-secret": "mine"},
			func(_ *world, _ *Deps, o *Options) {
				o.Request.Cluster.Image.PullSecret = "quay"
			}, []want{{"secrets", OK, "exist", ""}}, ""},
		{"a colleague holds the environment", map[string]string{"repo-url": url, "script": "train.py"}, func(w *world, _ *Deps, _ *Options) {
			w.objects = append(w.objects, held("colleague", "Person"))
		}, []want{{"environment", Blocked, "ml-dev-env: it is held by colleague", "--name=NAME"}}, fail.EnvironmentBusy},
		{"and the run waits", map[string]string{"repo-url": url, "script": "train.py", "on-busy": "wait"}, func(w *world, _ *Deps, _ *Options) {
			w.objects = append(w.objects, held("colleague", "Person"))
		}, []want{{"environment", Warning, "it is held by colleague", ""}}, ""},
		{"the run itself holds it", map[string]string{"repo-url": url, "script": "train.py"}, func(w *world, _ *Deps, _ *Options) {
			w.objects = append(w.objects, held("uid-1", "PipelineRun"))
		}, []want{{"environment", OK, "it is held by pipelinerun uid-1", ""}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, file := barcelona(t)
			var change func(*Deps, *Options)
			if test.change != nil {
				// The test must change the world before it creates the world's clients.
				test.change(w, &Deps{}, &Options{})
				change = func(d *Deps, o *Options) { test.change(&world{}, d, o) }
			} else {
				change = func(*Deps, *Options) {}
			}
			report := w.examine(file, agent.Auto, inRun(ownRun(t, test.values)), change, func(_ *Deps, o *Options) { o.Scratch = t.TempDir() })
			if err := report.Err(); err != nil && stutter.MatchString(err.Error()) {
				t.Errorf("it names the checked object twice: %v", err)
			}
			for _, want := range test.want {
				found := false
				for _, check := range report.Checks {
					found = found || check.Object == want.check && check.Status == want.status && strings.Contains(check.Seen, want.seen) &&
						strings.Contains(check.Next, want.fix)
				}
				if !found {
					t.Errorf("no check %+v in\n%s", want, print(report))
				}
			}
			if err := report.Err(); (err == nil) != (test.reason == "") || err != nil && fail.ReasonOf(err) != test.reason {
				t.Errorf("got %v, want %q", err, test.reason)
			}
		})
	}
}

// TestRepositoryThatDoesNotAnswer: a question that preflight cannot answer is no failure.
func TestRepositoryThatDoesNotAnswer(t *testing.T) {
	asked := make(chan struct{}, 10)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	w, file := barcelona(t)
	d, o := w.deps(file), optionsOf(file, agent.Auto)
	inRun(ownRun(t, map[string]string{"repo-url": silent.URL + "/model", "script": "train.py"}))(&d, &o)
	o.Scratch = t.TempDir()
	p, err := newProbe(t.Context(), d, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-asked
		cancel()
	}()
	checks := p.repository(ctx)
	if len(checks) != 1 || checks[0].Status != Unknown || !strings.Contains(checks[0].Seen, "did not answer") {
		t.Errorf("got %+v, want unknown", checks)
	}
}

// TestIdleEnvironmentsAreListed: the GPUs of an unused environment are missing to others, who can ask its holder.
func TestIdleEnvironmentsAreListed(t *testing.T) {
	t.Setenv("PATH", "/nowhere") // without nvidia-smi
	began, later := time.Now(), make(chan struct{})
	node := agenttest.StartWith(t, 1, agenttest.Options{Now: func() time.Time {
		select {
		case <-later:
			return began.Add(time.Hour)
		default:
			return began
		}
	}})[0]
	close(later)
	made, labels := node.Certificates(), objects.Labels("env")
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}
	}
	held := &coordinationv1.Lease{ObjectMeta: meta("env"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("h-kim")}}
	held.Annotations = map[string]string{lease.HolderKind: "Person", lease.IdleAnnotation: "2h"}
	clients := &kube.Clients{Namespace: "ns", InCluster: true, Kube: kubefake.NewClientset(held, &appsv1.StatefulSet{ObjectMeta: meta("env")},
		&corev1.ConfigMap{ObjectMeta: meta("env-agent-use"),
			Data: map[string]string{"ca.crt": string(made.CA), "tls.crt": string(made.ReaperCert),
				"tls.key": string(made.ReaperKey)}},
		&corev1.Pod{ObjectMeta: meta("env-0"), Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: node.Config.PodIP}})}
	p := &probe{Deps: Deps{Clients: clients}}
	got := p.idle(t.Context())
	if len(got) != 1 || got[0].Status != OK || !strings.Contains(got[0].Seen, "ns/env of h-kim has not been used for 1h0m") {
		t.Errorf("checks %+v, want the idle environment with its holder", got)
	}
}
