// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/cli/runs"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// listener is the name of the EventListener of docs/examples/triggers, and of its other objects.
const listener = "mlenv-github"

// webhook installs docs/examples/triggers: only a push that is signed with the secret starts a run. The
// run of docs/examples/pipelines-as-code waits for that run.
func webhook(u trainer) {
	const secret = "it's a secret to everybody"
	u.installTriggers(secret)

	push := u.push("refs/heads/main")
	foreign := strings.Replace(push, u.repo, u.repo+"-of-another", 1)
	for _, refused := range []struct{ why, event, body, signature, says string }{
		{"signed with another secret", "push", push, signed(push, "a guess"), "payload signature check failed"},
		{"signed for another body", "push", push + " ", signed(push, secret), "payload signature check failed"},
		{"unsigned", "push", push, "", "no X-Hub-Signature-256 header set"},
		{"of another kind", "ping", push, signed(push, secret), "event type ping is not allowed"},
		{"on another branch", "push", u.push("refs/heads/try"), signed(u.push("refs/heads/try"), secret), "did not return true"},
		{"of another repository", "push", foreign, signed(foreign, secret), "did not return true"},
	} {
		id := u.send(refused.event, refused.body, refused.signature)
		if said := u.refusal(id); !strings.Contains(said, refused.says) {
			u.Errorf("the answer to an event %s is\n%s\nwant %q", refused.why, said, refused.says)
		}
	}
	if started := u.kubectl("get", "pipelineruns", "--output=name"); started != "" {
		u.Errorf("refused events started\n%s", started)
	}

	id := u.send("push", push, signed(push, secret))
	name := u.startedBy(id)
	waiting := u.startedByPipelinesAsCode()
	u.end(name).succeeded().ranks(2)
	u.end(waiting).succeeded().ranks(2)
	out, err := u.command(runs.ListCommand())
	if err != nil {
		u.Fatalf("mlenv runs: %v\n%s", err, out)
	}
	u.mustContain(out, name, waiting)
}

// installTriggers applies the example with a quick script, and waits until its EventListener is
// ready.
func (u trainer) installTriggers(secret string) {
	u.Helper()
	u.kubectl("create", "secret", "generic", listener, "--from-literal=secret="+secret)
	u.kubectl("apply", "--filename=../../docs/examples/triggers/cluster-rights.yaml")
	binding := "e2e-" + listener
	u.kubectl("create", "clusterrolebinding", binding, "--clusterrole=mlenv-eventlistener", "--serviceaccount="+u.namespace+":"+listener)
	u.Cleanup(func() {
		for _, object := range []string{"clusterrolebinding/" + binding, "clusterrole/mlenv-eventlistener"} {
			if out, err := run(u.T, nil, stateDir+"/bin/kubectl", "delete", object); err != nil {
				u.Errorf("deleting %s: %v: %s", object, err, out)
			}
		}
	})
	u.kubectl("apply", "--filename=../../docs/examples/triggers/rights.yaml")
	u.applyText(strings.ReplaceAll(u.quickExample("triggers/github.yaml"), "https://github.com/me/my-model.git", u.repo))
	u.waitFor("condition=Ready", "eventlistener/"+listener)
	// An EventListener reports Ready before its pod is ready.
	u.waitFor("condition=Available", "deployment/el-"+listener)
}

// startedByPipelinesAsCode starts docs/examples/pipelines-as-code as Pipelines as Code does: with the
// values of the event, and a unique name.
func (u trainer) startedByPipelinesAsCode() (name string) {
	u.Helper()
	text := strings.NewReplacer("  name: train\n", "  generateName: train-\n", "{{ repo_url }}", u.repo, "{{ revision }}", u.commit,
		"namespace: ml\n", "namespace: "+u.namespace+"\n", "value: ml}", "value: "+u.namespace+
			"}").Replace(u.quickExample("pipelines-as-code/.tekton/train.yaml"))
	file := filepath.Join(u.TempDir(), "train.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		u.Fatal(err)
	}
	return u.kubectl("create", "--filename="+file, "--output=jsonpath={.metadata.name}")
}

// quickExample returns a file of docs/examples/ whose run starts a shell script on one GPU of each
// node.
func (u trainer) quickExample(file string) string {
	u.Helper()
	content, err := os.ReadFile("../../docs/examples/" + file)
	if err != nil {
		u.Fatal(err)
	}
	quick := nodesParam.ReplaceAllString(string(content),
		`$0$1{name: gpus-per-node, value: "1"}$1{name: launcher, value: command}$1{name: check-fabric, value: "false"}`)
	quick = strings.ReplaceAll(quick, "value: train.py", "value: e2e/quick.sh")
	u.mustContain(quick, "check-fabric", "e2e/quick.sh")
	return quick
}

// nodesParam is a line of the examples that quickExample replaces.
var nodesParam = regexp.MustCompile(`(\n *- ){name: nodes, value: "2"}`)

// push has the fields of GitHub's webhook for a push that the example reads.
func (u trainer) push(ref string) string {
	u.Helper()
	body, err := json.Marshal(map[string]any{
		"ref": ref, "before": strings.Repeat("0", 40), "after": u.commit, "deleted": false,
		"repository":  map[string]any{"full_name": "me/my-model", "clone_url": u.repo},
		"head_commit": map[string]any{"id": u.commit},
	})
	if err != nil {
		u.Fatal(err)
	}
	return string(body)
}

// signed returns the header X-Hub-Signature-256 of the body.
func signed(body, secret string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(sum.Sum(nil))
}

// send posts an event to the EventListener's pod through the API server, which may learn the endpoints of a Service a
// little later. It returns the event's id; the response does not report the outcome.
func (u trainer) send(event, body, signature string) (id string) {
	u.Helper()
	pod := u.kubectl("get", "pods", "--selector=eventlistener="+listener, "--output=jsonpath={.items[0].metadata.name}")
	request := u.clients.Kube.CoreV1().RESTClient().Post().Namespace(u.namespace).Resource("pods").Name(pod+":8080").SubResource("proxy").
		SetHeader("Content-Type", "application/json").SetHeader("X-GitHub-Event", event).Body([]byte(body))
	if signature != "" {
		request.SetHeader("X-Hub-Signature-256", signature)
	}
	content, err := request.DoRaw(u.Context())
	if err != nil {
		u.Fatalf("sending a %s: %v\n%s", event, err, content)
	}
	var answer struct{ EventID string }
	if err := json.Unmarshal(content, &answer); err != nil || answer.EventID == "" {
		u.Fatalf("the EventListener answered %q (%v), want an eventID", content, err)
	}
	return answer.EventID
}

// refusal follows the EventListener's log until the log explains why the event starts nothing.
func (u trainer) refusal(id string) string {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	cmd := exec.CommandContext(ctx, stateDir+"/bin/kubectl", "--kubeconfig="+kubeconfig, "--namespace="+u.namespace, "logs", "--follow",
		"deployment/el-"+listener)
	log, err := cmd.StdoutPipe()
	if err != nil {
		u.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		u.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // this function ended it
	}()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if strings.Contains(lines.Text(), id) && strings.Contains(lines.Text(), "interceptor stopped trigger processing") {
			return lines.Text()
		}
	}
	u.Fatalf("the EventListener's log does not report the outcome of event %s: %v", id, lines.Err())
	return ""
}

// startedBy watches until the event has started a run.
func (u trainer) startedBy(id string) (name string) {
	u.Helper()
	ctx, cancel := u.within(timeForARunToEnd)
	defer cancel()
	options := metav1.ListOptions{LabelSelector: "triggers.tekton.dev/triggers-eventid=" + id}
	err := kube.WatchUntil(ctx, "the run of event "+id, u.clients.Tekton.TektonV1().PipelineRuns(u.namespace), options,
		func(found []*v1.PipelineRun) (bool, error) {
			if len(found) > 0 {
				name = found[0].Name
			}
			return name != "", nil
		})
	if err != nil {
		u.Fatal(err)
	}
	return name
}
