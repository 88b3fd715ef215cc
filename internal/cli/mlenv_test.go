// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("cluster: {nam: x}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	away := filepath.Join(t.TempDir(), "kubeconfig")
	const config = `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": ` +
		`"c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u"}]}`
	if err := os.WriteFile(away, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	const right = "../../clusters/barcelona.yaml"
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"valid, with its notes", []string{"validate", right}, 0, "5 nodes, 4 GPUs each, storage volumeClaimTemplates\n  RDMA by SR-IOV.", ""},
		{"one of two is wrong", []string{"validate", wrong, right}, 1, "barcelona.yaml: valid",
			`wrong.yaml:1:11: cluster.nam: unknown key; did you mean "name"?`},
		{"a mistake as JSON", []string{"validate", wrong, "-o", "json"}, 1, `"line": 1,
        "column": 11,
        "path": "cluster.nam"`, ""},
		{"not there", []string{"validate", "/nowhere.yaml"}, 1, "", "mlenv validate failed: InvalidInput: reading the cluster file: open " +
			"/nowhere.yaml: "},
		{"no file", []string{"validate"}, 2, "", "an argument is missing: want cluster files"},
		{"every mistake of rdma", []string{"rdma", "env", "first"}, 2, "", `node "first": want its number in the environment, 0 and up`},
		{"doctor without an API server", []string{"doctor", "env", "--kubeconfig", away}, 1, "finding 1 of 1: NotReadable: API server", ""},
		{"every mistake of doctor", []string{"doctor", "env", "--name=other", "--quiet-after=0s"}, 2, "",
			`environment "env" and --name "other": want one of them
  --quiet-after 0s: want more than 0s`},
		{"every mistake of top", []string{"top", "a", "b", "--every=0s"}, 2, "", `arguments ["a" "b"]: want one environment or none
  --every 0s: want at least 1s`},
		{"every mistake of admin", []string{"admin", right, "-n", "My_Team", "--attachments=move", "--scc=anyuid"}, 2, "",
			`--attachments "move": want none or copy
  --namespace "My_Team": `},
		{"install without an API server", []string{"install", right, "--dry-run", "--steps-image=registry.test/steps@sha256:" +
			strings.Repeat("1", 64), "--kubeconfig", away}, 1, "", "no answer from API server"},
		{"all commands", []string{"--help=all"}, 0, "  help         Help about any command\n  version ", ""},
		{"admin applies nothing", []string{"admin", right, "--apply"}, 2, "", "unknown flag: --apply"},
		{"an output that rdma lacks", []string{"rdma", "--output=xml"}, 2, "", `--output "xml": want text, json or yaml`},
		{"admin without a pool", []string{"admin", right, "--reboot-pool="}, 2, "", "the pool is empty: want the name of a MachineConfigPool"},
		{"admin of what is no file", []string{"admin", "/nowhere.yaml"}, 2, "", "/nowhere.yaml"},
		{"admin with the installed file, and no API server", []string{"admin", "--kubeconfig", away}, 2, "",
			"listing configmaps in default: no answer from API server"},
		{"admin", []string{"admin", right}, 0, "# 1. service account ml-dev-sa\n", ""},
		{"every mistake of preflight", []string{"preflight", "--mode=fast", "-o", "yaml"}, 2, "",
			"--output=yaml prints the objects of a cluster file: want --cluster-file with it\n  --mode \"fast\": want auto, rdma or tcp"},
		{"every mistake of runs", []string{"runs", "--svg=x", "--loss-tolerance=5", "--limit=-1"}, 2, "",
			"--loss-tolerance: want --trend with it\n  --svg: want --trend with it\n  --limit -1: want 0 or more"},
		{"an output that runs --trend lacks", []string{"runs", "--trend", "-o", "name"}, 2, "",
			"--trend with --output=name: want text, json or yaml"},
		{"the files of which runs", []string{"prune", "--files"}, 2, "", "--files: want the names of the runs whose files you want to delete"},
		{"the first screen", []string{"--help"}, 0, "More commands: mlenv --help=all\n", ""},
		{"all commands", []string{"--help=all"}, 0, "  check-fabric Measure the network between the nodes of an environment\n  doctor ", ""},
		{"the usual flags of run", []string{"run", "--help"}, 0, "All flags: mlenv run --help=all\n", ""},
		{"all flags of run", []string{"run", "--help=all"}, 0, "\nRare:\n      --lfs ", ""},
		{"everything of a command with few flags", []string{"status", "--help=all"}, 0, "-h, --help ", ""},
		{"preflight of no cluster file, and no API server", []string{"preflight", "--kubeconfig", away}, 1, "",
			"mlenv preflight failed: APIServerUnreachable: listing configmaps in default: no answer from API server http://127.0.0.1:1: " +
				"connection refused"},
		{"every mistake of check-fabric", []string{"check-fabric", "--mode=udp", "--fabric-bandwidth=maybe", "--timeout=1s"}, 2, "",
			`--fabric-bandwidth "maybe": want warn or fail
  --mode "udp": want tcp or rdma, or nothing for the environment's
  --timeout "1s": want at least 20s, because torch takes some of it to start`},
		{"a script's flag without --", []string{"run", ".", "train.py", "--epochs=3"}, 2, "", "unknown flag: --epochs; flags of the script or " +
			"command go after --"},
		{"version", []string{"version"}, 0, "mlenv version ", ""},
		{"version as JSON", []string{"version", "-o", "json"}, 0, `"version": "`, ""},
		{"a flag that is misspelt", []string{"run", ".", "train.py", "--nods=2"}, 2, "", "unknown flag: --nods; flags of the script or command " +
			"go after --; did you mean --nodes?\n"},
		{"a flag of torchrun", []string{"run", ".", "train.py", "--nproc_per_node=2"}, 2, "",
			"unknown flag: --nproc_per_node; flags of the script or command go after --; its name here is --ranks-per-node\n"},
		{"another one", []string{"run", ".", "train.py", "--nnodes", "2"}, 2, "",
			"unknown flag: --nnodes; flags of the script or command go after --; its name here is --nodes\n"},
		{"one that needs no counterpart", []string{"run", ".", "train.py", "--rdzv-endpoint=a:1"}, 2, "",
			"unknown flag: --rdzv-endpoint; flags of the script or command go after --; the launcher gets it by itself\n"},
		{"a flag of accelerate launch", []string{"train", "train.py", "--num_processes=8"}, 2, "",
			"unknown flag: --num_processes; flags of the script or command go after --; the launcher gets it by itself\n"},
		{"launcher accelerate", []string{"train", "train.py", "--launcher=accelerate"}, 2, "",
			"deepspeed-launcher or torchrun-launcher; accelerate reads the variables of torchrun"},
		{"launcher python", []string{"train", "train.py", "--launcher=python"}, 2, "",
			"torchrun-launcher; command starts the script once on every node"},
		{"a file in place of the folder", []string{"run", "mlenv_test.go"}, 2, "",
			`argument "mlenv_test.go" is a file: want its folder first: mlenv run . mlenv_test.go`},
		{"a folder without ./", []string{"run", "testdata", "train.py"}, 2, "",
			`argument "testdata": a folder begins with ./, as in mlenv run ./testdata train.py`},
		{"a folder as a URL", []string{"run", "file:///srv/model", "train.py"}, 2, "",
			`argument "file:///srv/model": a folder has no scheme: mlenv run /srv/model train.py`},
		{"names that no object can have", []string{"run", ".", "train.py", "--run-name=Bad_Name", "--service-account=Me@x"}, 2, "",
			"--run-name \"Bad_Name\": want lower-case letters, digits and hyphens, a letter or digit first and last, at most 63\n  " +
				"--service-account \"Me@x\": want"},
		{"a flag of the script that is like none", []string{"run", ".", "train.py", "--lr=2"}, 2, "",
			"unknown flag: --lr; flags of the script or command go after --\n"},
		{"uninstall without an API server", []string{"uninstall", "--kubeconfig", away}, 1, "",
			"listing cronjobs: no answer from API server http://127.0.0.1:1: connection refused\n  next: "},
		{"a value after its flag", []string{"up", "--keep-for", "5"}, 2, "", `--keep-for "5": want a duration such as 40m or 24h`},
		{"too many arguments", []string{"status", "a", "b"}, 2, "", `arguments ["a" "b"]: want one run or none`},
		{"a namespace that cannot exist", []string{"runs", "-n", "My_Team"}, 1, "", `--namespace "My_Team": `},
		{"unknown command", []string{"launch"}, 2, "", `unknown command "launch"`},
		{"a command of kubectl", []string{"exec", "-it", "node", "--", "sh"}, 2, "",
			`unknown command "exec" for "mlenv"; here it is mlenv shell NODE -- COMMAND`},
		{"a command of docker", []string{"ps"}, 2, "", `unknown command "ps" for "mlenv"; here it is mlenv runs`},
		{"a command that is misspelt", []string{"staus", "x"}, 2, "", `unknown command "staus" for "mlenv"; did you mean status?`},
		{"no command", []string{}, 0, "Run a training and look at it:", ""},
		{"unknown command of a group", []string{"schedule", "lst"}, 2, "", `unknown command "lst" for "mlenv schedule"`},
		{"help of nothing", []string{"help", "nothing"}, 2, "", `unknown command "nothing" for "mlenv": want one of admin, `},
		{"help of a group's unknown command", []string{"help", "schedule", "lst"}, 2, "",
			`unknown command "lst" for "mlenv schedule": want one of `},
		{"help of a command", []string{"help", "run"}, 0, "mlenv run", ""},
		{"completion of an unknown shell", []string{"completion", "foo"}, 2, "",
			`unknown command "foo" for "mlenv completion": want one of bash, fish, powershell, zsh`},
		{"completion", []string{"completion", "bash"}, 0, "bash completion", ""},
		{"a group alone", []string{"schedule"}, 0, "Available Commands:", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := Main(test.args, &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stdout.String(), test.stdout) {
				t.Errorf("stdout %q, want %q", stdout.String(), test.stdout)
			}
			if !strings.Contains(stderr.String(), test.stderr) || test.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr %q, want %q", stderr.String(), test.stderr)
			}
		})
	}
}

// TestOfOthers checks that the commands which stand for others' commands exist.
func TestOfOthers(t *testing.T) {
	root := newRoot()
	for typed, own := range ofOthers {
		if found, _, _ := root.Find([]string{typed}); found != root {
			t.Errorf("mlenv %s is a command of its own", typed)
		}
		for _, named := range regexp.MustCompile(`mlenv ([a-z-]+)`).FindAllStringSubmatch(own, -1) {
			if found, _, err := root.Find([]string{named[1]}); err != nil || found == root {
				t.Errorf("%s stands for %q: there is no mlenv %s", typed, own, named[1])
			}
		}
	}
}
