// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
)

// awkward are texts that Tekton, the kubelet or a shell could change. tkn splits at commas, so they have none.
var awkward = []string{"--regex", "^a$$", "$(HOME)", "$$(HOME)", "$(context.pipelineRun.name)", "$(context.taskRun.name)",
	"$(params.script)",
	"$(params.script-args[*])", "$(KUBERNETES_SERVICE_HOST)", "--", "a b", "'\"\\", "é$é", "`id`", "*", "$("}

// randomTexts are made of parts of awkward ones, except references to whole arrays: Tekton refuses them next to other text.
func randomTexts(random *rand.Rand, count int) (texts []string) {
	parts := slices.DeleteFunc(slices.Clone(awkward), func(text string) bool { return strings.Contains(text, "[*]") })
	for range count {
		var text strings.Builder
		for range 1 + random.IntN(5) {
			text.WriteString(parts[random.IntN(len(parts))])
			if random.IntN(4) == 0 {
				text.WriteString("\n,\t")
			}
		}
		texts = append(texts, text.String())
	}
	return texts
}

// argumentsArrive tests that the script gets its arguments and variables byte for byte, through tkn, and from a PipelineRun as mlenv,
// the Action and schedules create it.
func argumentsArrive(u trainer) {
	e := u.end(u.start("e2e/arguments.sh", byShell, oneGPU, "--param=nodes=1", "--param=script-args="+strings.Join(awkward, ","),
		"--param=env=E2E_TEXT=^a$$ $(HOME) $(context.pipelineRun.name)")).succeeded()
	e.printed(awkward, "^a$$ $(HOME) $(context.pipelineRun.name)")

	seed := uint64(time.Now().UnixNano())
	u.Logf("seed %d", seed)
	const some = 40
	texts := randomTexts(rand.New(rand.NewPCG(seed, 0)), some)
	const timeToStartARun = time.Minute
	ctx, cancel := u.within(timeToStartARun)
	defer cancel()
	clients := &kube.Clients{Config: u.clients.Config, Kube: u.clients.Kube, Tekton: u.clients.Tekton, Objects: u.clients.Objects,
		Namespace: u.namespace}
	pipeline, err := launch.Installed(ctx, clients)
	if err != nil {
		u.Fatal(err)
	}
	started, err := launch.Start(ctx, clients, launch.Request{Pipeline: pipeline, Name: launch.NewName(), Values: map[string][]string{
		"repo-url": {u.repo}, "script": {"e2e/arguments.sh"}, "launcher": {"command"}, "nodes": {"1"}, "gpus-per-node": {"1"},
		"check-fabric": {"false"},
		"script-args":  texts[1:], "env": {"E2E_TEXT=" + texts[0]},
	}})
	if err != nil {
		u.Fatal(err)
	}
	u.end(started.Name).succeeded().printed(texts[1:], texts[0])
}

// printed checks what e2e/arguments.sh has printed.
func (e ending) printed(arguments []string, variable string) {
	e.Helper()
	log := e.log("train")
	var want []string
	for _, argument := range arguments {
		want = append(want, fmt.Sprintf("argument %s.", base64.StdEncoding.EncodeToString([]byte(argument))))
	}
	want = append(want, fmt.Sprintf("variable %s.", base64.StdEncoding.EncodeToString([]byte(variable))))
	var got []string
	for line := range strings.Lines(log) {
		if _, text, found := strings.Cut(strings.TrimSpace(line), "[0 -] "); found &&
			(strings.HasPrefix(text, "argument ") || strings.HasPrefix(text, "variable ")) {
			got = append(got, text)
		}
	}
	e.equal("what the script was given", strings.Join(got, "\n"), strings.Join(want, "\n"))
}
