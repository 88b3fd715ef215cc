// SPDX-License-Identifier: Apache-2.0

package param

import (
	"strings"
	"testing"
)

// TestTable: a default that is not empty is valid, and the help is short.
func TestTable(t *testing.T) {
	const words = 12
	for _, p := range table {
		if err := p.Kind.Check(p.Default); p.Default != "" && err != nil && p.Default != "0s" { // 0s is no training, and no end
			t.Errorf("the default of param %s: %v", p.Name, err)
		}
		if n := len(strings.Fields(p.Help)); n > words {
			t.Errorf("param %s: %d words of help, want at most %d: %s", p.Name, n, words, p.Help)
		}
		if strings.HasSuffix(p.Help, ", true or false") && p.Kind.Check("True") == nil {
			t.Errorf("param %s takes True, with which Tekton would skip its task", p.Name)
		}
		for name := range strings.FieldsSeq(p.In) {
			if found, _ := find(name, p.Name); found.Help != p.Help {
				t.Errorf("%s has param %s twice", name, p.Name)
			}
		}
	}
}

func TestKinds(t *testing.T) {
	for _, test := range []struct{ param, valid, invalid string }{
		{"build-args", "A.b=1", "--force"},
		{"check-fabric", "false", "no"},
		{"datasets-size", "500Gi", "500GB"},
		{"datasets-size", "500M", "0"},
		{"workspace-size", "1Ti", " 100Gi"},
		{"workspace-size", "1", "-1Gi"},
		{"deepspeed-config", "conf/ds.json", "--ds.json"},
		{"env", "A=", "RANK=1"},
		{"env-secret", "wandb", "My Secret"},
		{"queue", "team-a", "Team A"},
		{"queue-priority", "urgent", "very urgent"},
		{"exclude-nodes", "wrk-97,wrk-98.example.com", "wrk-97, wrk-98"},
		{"fabric-bandwidth", "fail", "ignore"},
		{"exclude-nodes", "wrk-97", "wrk 97"},
		{"max-restarts", "99", "100"},
		{"flavour", "pytorch-2.9-numpy2", "a/b"},
		{"git-secret", "none", ""},
		{"gpus-per-node", "8", "-1"},
		{"gpus-per-node", "0", "none"},
		{"gpus-per-node", "", "1.5"},
		{"ranks-per-node", "0", "1.5"},
		{"image", "quay.io/me/training:v1", "quay.io/me/training:"},
		{"keep-for", "40m", "0s"},
		{"launcher", "torchrun", "mpirun"},
		{"mode", "rdma", "ib"},
		{"name", "h-kim", "H.Kim"},
		{"name", "b7", "7b"}, // the name of a Service begins with a letter
		{"name", strings.Repeat("n", 52), strings.Repeat("n", 53)},
		{"hang-timeout", "0", "-5m"},
		{"hang-timeout", "20m", "never"},
		{"stop-if", "loss > 20 after 100 steps", "loss > 20"},
		{"restart-if", "gpu_use < 5% for 20m", "gpu_use < 5 for 20m"},
		{"nodes", "0x10", "two"},
		{"notify", "slack", "https://hooks.slack.com/x"},
		{"on-busy", "wait", "queue"},
		{"on-change", "recreate", "apply"},
		{"repo-url", "https://git.example/model", "/home/me/model"},
		{"requirements", "conf/requirements.txt", "/etc/passwd"},
		{"repo-url", "git@example.com:me/model.git", "./model"},
		{"repo-url", "folder:" + strings.Repeat("0", 64), "ftp://example.com/model"},
		{"require-rendezvous", "fail", "true"},
		{"requirements", "requirements.txt", "../requirements.txt"},
		{"revision", "feature/x", "--upload-pack=x"},
		{"script", "/opt/bin/train", "--epochs"},
		{"script", "-m model.train", "-m model/train.py"},
		{"script", "-m train", "-m train --epochs 3"},
		{"storage", "volumeClaimTemplates", "rwo"},
		{"timeout", "1h30m", "90"},
	} {
		kind := KindOf(test.param)
		if err := kind.Check(test.valid); err != nil {
			t.Errorf("%s %q: got %v, want it valid", test.param, test.valid, err)
		}
		if err := kind.Check(test.invalid); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s %q: got %v, want a mistake", test.param, test.invalid, err)
		}
	}
	if err := KindOf("repo-url").Check("https://me:hunter2@example.com"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want an error that shows no password", err)
	}
	for _, folder := range []string{"./model", "model", "~/model", "file:///srv/model"} {
		if err := KindOf("repo-url").Check(folder); err == nil ||
			!strings.Contains(err.Error(), "mlenv run takes a folder as ./DIR or an absolute path") {
			t.Errorf("%s: got %v, want how a folder is given", folder, err)
		}
	}
	if err := KindOf("mine").Check("anything"); err != nil {
		t.Errorf("a param that only the installed pipeline has: %v", err)
	}
}
