// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests the project on the local cluster with the real clients: kubectl, tkn and git.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
)

// Paths and addresses of the local cluster, which its README documents.
const (
	stateDir     = "/var/lib/ml-dev-env-localcluster"
	kubeconfig   = stateDir + "/kubeconfig"
	registryHost = "10.223.0.2:5000"
	// gitHost is the git server's name in pods, gitAddress its address on this machine.
	gitHost    = "git.localcluster.local"
	gitAddress = "10.223.0.2"
)

// keepVariable, if set, makes the tests use the running cluster and keep it.
const keepVariable = "E2E_KEEP_CLUSTER"

// TestCluster is one test because the order of its parts matters: it records the machine's state, starts and repairs
// the cluster, uses it in parallel, removes it, and compares the machine's state.
func TestCluster(t *testing.T) {
	keep := os.Getenv(keepVariable) != ""
	if !keep {
		localcluster(t, "down")
	}
	before := machine(t)
	start := time.Now()
	times := &durations{}
	// The cleanup that is registered first runs last. So these are the last lines before the test runner's own.
	t.Cleanup(func() { times.printSlowest(os.Stdout, 10) })
	if *update {
		t.Cleanup(func() { times.writeFaults(t, repository(t)) })
	}
	t.Cleanup(func() {
		if !keep {
			localcluster(t, "down")
		}
	})
	if !keep {
		t.Run("up after Ctrl-C and after a reboot", interruptedUp)
	}
	// First, because later nothing is as new as on a newcomer's machine. The demo completes the cluster itself.
	localcluster(t, append([]string{"up"}, bare...)...)
	t.Run("demo", demo)
	localcluster(t, "up", "--triggers")
	t.Logf("up took %s, with the demo", time.Since(start).Round(time.Second))
	t.Run("lifecycle", testLifecycle)
	gpus := semaphore.NewWeighted(gpusOfNode)
	var both sync.WaitGroup
	both.Go(func() { t.Run("uses", func(t *testing.T) { testUses(t, times, gpus) }) })
	both.Go(func() { t.Run("training", func(t *testing.T) { testTraining(t, times, gpus) }) })
	both.Wait()
	if keep {
		return
	}
	t.Run("down leaves nothing", func(t *testing.T) {
		localcluster(t, "down")
		if diff := difference(before, machine(t)); diff != "" {
			t.Errorf("the machine is not as it was before up:\n%s", diff)
		}
		localcluster(t, "down") // without a cluster
	})
}

// repository returns the root folder of the checkout.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func localclusterProgram(t *testing.T) string {
	return filepath.Join(repository(t), "bin", "localcluster")
}

// commanding keeps the cluster from getting two commands at the same time, which it refuses.
var commanding sync.Mutex

// localcluster runs the command, shows its progress while it runs, because an up may take long,
// and returns its standard output.
func localcluster(t *testing.T, args ...string) string {
	t.Helper()
	commanding.Lock()
	defer commanding.Unlock()
	cmd := exec.Command(localclusterProgram(t), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stdout
	if err := cmd.Run(); err != nil {
		t.Fatalf("localcluster %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}

// run runs a program until it ends and returns its output.
func run(t *testing.T, stdin []byte, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	if t.Context().Err() != nil { // during a cleanup
		cmd = exec.Command(program, args...)
	}
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// user runs kubectl and tkn in a namespace of its own.
type user struct {
	*testing.T
	namespace string
	// login is the kubeconfig for commands of mlenv, if it is not the administrator's.
	login string
}

// newUser creates a namespace and deletes it when the test ends.
func newUser(t *testing.T) user {
	t.Helper()
	name := strings.ToLower(t.Name()[strings.LastIndex(t.Name(), "/")+1:])
	return newUserIn(t, "e2e-"+strings.ReplaceAll(name, "_", "-"))
}

// newUserIn is newUser for a test that needs several.
func newUserIn(t *testing.T, namespace string) user {
	t.Helper()
	u := user{T: t, namespace: namespace}
	u.kubectl("create", "namespace", u.namespace)
	t.Cleanup(func() {
		if t.Failed() {
			u.dump()
		}
		if out, err := run(t, nil, stateDir+"/bin/kubectl", "delete", "namespace", u.namespace, "--wait=false"); err != nil {
			t.Errorf("deleting the namespace: %v: %s", err, out)
		}
	})
	return u
}

// awaitPullSecret waits until the account default has the pull secret that it gets a moment after the namespace is created. Tests that
// create pods themselves need it. Scenarios of the product do not call it, because the product has to wait itself.
func (u user) awaitPullSecret() {
	u.Helper()
	for _, condition := range []string{"create", "jsonpath={.imagePullSecrets[0].name}=registry-pull"} {
		u.kubectl("wait", "--for="+condition, "serviceaccount/default", within(timeForTheObjectToChange))
	}
}

// dumps collects the text that TestMain prints after all tests. There the text does not hide the failures, because the
// runner repeats them at the end.
var dumps struct {
	sync.Mutex
	bytes.Buffer
}

// printLater adds a text to dumps.
func (u user) printLater(format string, args ...any) {
	dumps.Lock()
	defer dumps.Unlock()
	fmt.Fprintf(&dumps, "==> "+u.Name()+": "+format+"\n", args...)
}

// dump prints the namespace of a failed test.
func (u user) dump() {
	for _, args := range [][]string{
		{"get", "pods,pvc,taskruns", "--output=wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--all-containers", "--prefix", "--tail=30", "--selector=e2e=yes"},
	} {
		out, _ := run(u.T, nil, stateDir+"/bin/kubectl", append([]string{"--namespace", u.namespace}, args...)...)
		u.printLater("kubectl %s:\n%s", strings.Join(args, " "), out)
	}
}

// kubectl runs the real kubectl in the user's namespace; it must succeed.
func (u user) kubectl(args ...string) string {
	u.Helper()
	out, err := u.try(args...)
	if err != nil {
		u.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try runs kubectl, which may fail.
func (u user) try(args ...string) (string, error) {
	u.Helper()
	return run(u.T, nil, stateDir+"/bin/kubectl", append([]string{"--namespace", u.namespace}, args...)...)
}

// closedChannel is a race of tkn, also in its version 0.46: readPodLogs counts a goroutine after the goroutine that waits for it has
// started, so that a pod's error can come after its channel is closed. The logs can be read again.
const closedChannel = "panic: send on closed channel"

// tkn runs the real tkn in the user's namespace; it must succeed.
func (u user) tkn(args ...string) string {
	u.Helper()
	out, err := run(u.T, nil, stateDir+"/bin/tkn", append(args, "--namespace", u.namespace)...)
	if err != nil && slices.Contains(args, "logs") && strings.Contains(out, closedChannel) {
		u.Logf("tkn %s: %s", strings.Join(args, " "), closedChannel)
		return u.tkn(args...)
	}
	if err != nil {
		u.Fatalf("tkn %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// apply applies a file of testdata with @NAME@ replaced by values[NAME].
func (u user) apply(file string, values map[string]string) {
	u.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		u.Fatal(err)
	}
	text := string(content)
	for name, value := range values {
		text = strings.ReplaceAll(text, "@"+name+"@", value)
	}
	u.applyText(text)
}

func (u user) applyText(text string) (out string) {
	u.Helper()
	out, err := run(u.T, []byte(text), stateDir+"/bin/kubectl", "--namespace", u.namespace, "apply", "--filename=-")
	if err != nil {
		u.Fatalf("applying: %v\n%s\n%s", err, out, text)
	}
	return out
}

// within returns kubectl's flag for the longest wait.
func within(d time.Duration) string { return "--timeout=" + d.String() }

// waitFor watches until the object meets the condition, in the syntax of kubectl wait.
func (u user) waitFor(condition, object string) {
	u.Helper()
	u.kubectl("wait", "--for="+condition, within(timeForTheObjectToChange), object)
}

// waitEvent watches the namespace's events until one of the object contains the text.
func (u user) waitEvent(object, text string) {
	u.Helper()
	ctx, cancel := context.WithTimeout(u.Context(), timeForTheObjectToChange)
	defer cancel()
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", "--kubeconfig="+kubeconfig, "--namespace", u.namespace,
		"get", "events", "--watch", "--field-selector=involvedObject.name="+object,
		"--output=jsonpath={.message}{\"\\n\"}")
	found := &finder{text: text, done: cancel}
	cmd.Stdout, cmd.Stderr = found, found
	err := cmd.Run()
	if !found.seen {
		u.Fatalf("no event of %s contains %q (%v); events:\n%s", object, text, err, found.all.String())
	}
}

// finder is a writer that stops its source after it has seen a text.
type finder struct {
	text string
	done func()
	seen bool
	all  bytes.Buffer
}

func (f *finder) Write(p []byte) (int, error) {
	from := max(0, f.all.Len()-len(f.text)) // the text before is already searched
	f.all.Write(p)
	if !f.seen && bytes.Contains(f.all.Bytes()[from:], []byte(f.text)) {
		f.seen = true
		f.done()
	}
	return len(p), nil
}

// mustContain fails unless the text contains every part.
func (u user) mustContain(text string, parts ...string) {
	u.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			u.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// exitCode returns the exit code of a finished program, or -1.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
