// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

// layout is what frameworks leave in a folder, and the newest complete checkpoint in it.
type layout struct {
	row, name, want string
	folders         []string
}

// layouts reads the table, whose beginning explains it. The tests of the module mlenv read it too.
func layouts(t *testing.T) (all []layout, sets map[string]string) {
	t.Helper()
	content, err := os.ReadFile("../../../test/images/checkpoints.txt")
	if err != nil {
		t.Fatal(err)
	}
	sets = map[string]string{}
	row := ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		before, after, _ := strings.Cut(line, ": ")
		switch {
		case strings.HasPrefix(line, "## "):
			row = line[3:]
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "set "):
			sets[before[4:]] = after
		case strings.HasPrefix(line, "\t"):
			last := &all[len(all)-1]
			last.folders = append(last.folders, line[1:])
		default:
			all = append(all, layout{row: row, name: before, want: after})
		}
	}
	return all, sets
}

// write writes the layout's files.
func (l layout) write(t *testing.T, dir string, sets map[string]string) {
	t.Helper()
	for minute, line := range l.folders {
		folder, names, _ := strings.Cut(line, " ")
		var files []string
		for words := strings.Fields(names); len(words) > 0; words = words[1:] {
			if set, ok := sets[words[0]]; ok {
				words = append(words[:1:1], append(strings.Fields(set), words[1:]...)...)
			} else if name, ok := strings.CutPrefix(words[0], "-"); ok {
				files = slices.DeleteFunc(files, func(file string) bool { return file == name })
			} else {
				files = slices.DeleteFunc(files, func(file string) bool { return "~"+file == words[0] })
				files = append(files, words[0])
			}
		}
		for _, file := range files {
			name, torn := strings.CutPrefix(file, "~")
			name, content, given := strings.Cut(name, ":")
			if !given {
				content = contentOf(name, torn)
			}
			path := filepath.Join(dir, folder, name)
			write(t, path, content, minute)
			for above := filepath.Dir(filepath.Dir(path)); len(above) > len(dir); above = filepath.Dir(above) {
				if err := os.Chtimes(above, minutes(minute), minutes(minute)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func contentOf(name string, half bool) string {
	content, end := zipped, 5
	switch filepath.Ext(name) {
	case ".json":
		content, end = "{\"step\": 20}\n", 1
	case ".safetensors":
		header := `{"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`
		content = string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + "data"
		end = len(content) - 1
	case ".metadata":
		content, end = "\x80\x02}X\x0d__0_0.distcp X __1_0.distcp u.", 30
	}
	if half {
		return content[:end]
	}
	return content
}

func TestLayoutsOfFrameworks(t *testing.T) {
	all, sets := layouts(t)
	for _, l := range all {
		t.Run(l.row+"/"+l.name, func(t *testing.T) {
			dir := t.TempDir()
			l.write(t, dir, sets)
			for _, search := range []agent.CheckpointSearch{{All: true}, {All: true, World: 2}} {
				found, err := findCheckpoints(t.Context(), dir, search)
				if err != nil {
					t.Fatal(err)
				}
				got := "none"
				if i := slices.IndexFunc(found, func(c agent.Checkpoint) bool { return c.Missing == "" }); i >= 0 {
					got = found[i].Name
				}
				if got != l.want || got != "none" && !agent.IsCheckpointPath(got) {
					t.Errorf("got %s, want %s; found %+v", got, l.want, found)
				}
			}
		})
	}
}

// TestLayoutsAreDocumented: the table in docs/reference/node.md has the rows that are tested, and no others.
func TestLayoutsAreDocumented(t *testing.T) {
	all, _ := layouts(t)
	var tested, documented []string
	for _, l := range all {
		if !slices.Contains(tested, l.row) {
			tested = append(tested, l.row)
		}
	}
	page, err := os.ReadFile("../../../docs/reference/node.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| written by |")
	for _, line := range strings.Split(table, "\n")[2:] {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		documented = append(documented, strings.Split(line, " | ")[0][2:])
	}
	if !slices.Equal(tested, documented) {
		t.Errorf("documented are %q, tested %q", documented, tested)
	}
}

// TestFrameworksLack: the log reports what an incomplete checkpoint lacks, and each node is asked for its own part.
func TestFrameworksLack(t *testing.T) {
	_, sets := layouts(t)
	all, second := agent.CheckpointSearch{World: 2, All: true}, agent.CheckpointSearch{World: 2, Ranks: []int{1}}
	for _, tc := range []struct {
		search  agent.CheckpointSearch
		folders string
		format  agent.CheckpointFormat
		lacks   string
	}{
		{all, "a/checkpoint-5 trainer -trainer_state.json", agent.Trainer, "trainer_state.json"},
		{all, "a/checkpoint-5 trainer ~model.safetensors", agent.Trainer, "the end of model.safetensors"},
		{all, "a/checkpoint-5 sharded -model-00002-of-00002.safetensors", agent.Trainer, "model-00002-of-00002.safetensors"},
		{all, "a/checkpoint-5/optimizer_0 __0_0.distcp;a/checkpoint-5 trainer", agent.Trainer, "optimizer_0/.metadata"},
		{all, "a/checkpoint-5/optimizer_0 dcp ~__0_0.distcp;a/checkpoint-5 trainer", agent.Trainer, "the end of optimizer_0/__0_0.distcp"},
		{all, "a/checkpoint-5/global_step5 zero;a/checkpoint-5 trainer", agent.Trainer, "latest"},
		{second, "a/checkpoint-5 rng_state_1.pth", agent.Trainer, "trainer_state.json"},
		{second, "a/checkpoint-5 trainer -rng_state_0.pth", agent.Trainer, ""},
		{all, "a/epoch_5 accelerate -random_states_1.pkl", agent.Accelerate, "random_states_1.pkl"},
		{all, "a/checkpoint_5 model.safetensors", agent.Accelerate, "random_states_0.pkl, random_states_1.pkl"},
		{all, "a/x.ckpt dcp", agent.Lightning, "meta.pt"},
		{all, "a ~x.ckpt", agent.Lightning, "the end of x.ckpt"},
		{second, "a/x.ckpt/checkpoint zero3 -zero_pp_rank_1_mp_rank_00_optim_states.pt;a/x.ckpt latest:checkpoint", agent.Lightning,
			"checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"},
	} {
		t.Run(tc.folders, func(t *testing.T) {
			dir := t.TempDir()
			layout{folders: strings.Split(tc.folders, ";")}.write(t, dir, sets)
			found, err := findCheckpoints(t.Context(), dir, tc.search)
			if err != nil || len(found) != 1 || found[0].Format != tc.format || found[0].Missing != tc.lacks {
				t.Errorf("got %+v, %v; want one of format %q that lacks %q", found, err, tc.format, tc.lacks)
			}
		})
	}
}
