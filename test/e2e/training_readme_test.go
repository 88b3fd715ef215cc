// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/receipt"
)

// readmeCommand trains three scripts that know nothing of ml-dev-env, each as train.py, with the README's command as it stands. The first
// run builds the image. The cluster file gives each node two of its GPUs, and the image a base that makes the build short.
func readmeCommand(u trainer) {
	u.install(u.localFile("per_node: 4\n", "per_node: 2\n",
		"  base: "+registryHost+"/base/debian-torch:trixie\n", "  base: "+trainingImage+"\n",
		"  flavour: cpu\n", "  flavour: cpu\n  build_args: [WITH_SERVICES=false, DEEPSPEED_OPS=shm_comm]\n"))
	args := u.readmeRun()
	for _, of := range []struct {
		launcher agent.Launcher
		why      string
		files    map[string]string
		says     []string
	}{
		{agent.Torchrun, "train.py declares no --local_rank, and none of DeepSpeed's arguments", map[string]string{"train.py": "ordinary.py"},
			[]string{"[0 0] trained 60 steps", "[0 1] trained 60 steps", "[1 2] trained 60 steps", "[1 3] trained 60 steps"}},
		{agent.DeepSpeed, " declares --local_rank", map[string]string{"train.py": "shapes/chat.py", "shared.py": "shapes/shared.py"},
			[]string{"[1 3] chat: 4 ranks trained one model"}},
		{agent.Torchrun, "train.py declares no --local_rank, and none of DeepSpeed's arguments", map[string]string{
			"train.py": "shapes/trainer.py", "shared.py": "shapes/shared.py", "requirements.txt": "requirements-chaos.txt"},
			[]string{"[1 3] trainer: 4 ranks trained one model"}},
	} {
		dir := u.TempDir()
		for name, from := range of.files {
			content, err := os.ReadFile(filepath.Join("testdata", "repo", from))
			if err != nil {
				u.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				u.Fatal(err)
			}
		}
		out, _ := u.saysWithin(timeForARunThatBuilds, dir, command.Done, args...)
		u.mustContain(out, append(of.says, "Launcher auto is "+string(of.launcher)+": ", of.why,
			"Launched train.py with "+string(of.launcher)+": 2 nodes, 2 ranks on each", "Training done: 4 ranks exited with 0")...)
		name := runSucceeded.FindStringSubmatch(out)
		if name == nil {
			u.Fatalf("the command names no run that succeeded:\n%s", shortened(out))
		}
		text, _ := u.says(dir, command.Done, "receipt", name[1], "--output=json")
		var r receipt.Receipt
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.Training == nil {
			u.Fatalf("the receipt of %s: %v\n%s", name[1], err, text)
		}
		u.equal("the receipt's launcher", r.Training.Launcher, of.launcher)
		u.mustContain(r.Training.LauncherWhy, of.why)
		u.equal("the receipt's script", r.Training.Script, "train.py")
		u.equal("the receipt's ranks", r.WorldSize(), 4)
		u.equal("the receipt's warning", r.Warning, "")
	}
}

var runSucceeded = regexp.MustCompile(`(?m)^Run (\S+) succeeded`)

// readmeRun returns the arguments of the README's command for a cluster.
func (u trainer) readmeRun() []string {
	u.Helper()
	for _, b := range testedPages(u.T, repository(u.T))["README.md"] {
		for _, c := range b.commands() {
			text, _, _ := strings.Cut(c.text, "#")
			if strings.HasPrefix(text, "mlenv run . train.py") && !strings.Contains(text, "--local") {
				return strings.Fields(text)[1:]
			}
		}
	}
	u.Fatal("the README has no command that trains train.py on a cluster")
	return nil
}
