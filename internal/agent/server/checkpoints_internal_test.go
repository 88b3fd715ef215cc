// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

const (
	zipped = "PK\x03\x04 weights PK\x05\x06 ends"
	torn   = "PK\x03\x04 weigh"
)

// tag returns the files of a DeepSpeed checkpoint. Each name may be a format for the rank.
func tag(ranks int, names ...string) map[string]string {
	files := map[string]string{}
	for rank := range ranks {
		for _, name := range names {
			if strings.Contains(name, "%") {
				name = fmt.Sprintf(name, rank)
			}
			files[name] = zipped
		}
	}
	return files
}

func with(files map[string]string, name, content string) map[string]string {
	files = maps.Clone(files)
	files[name] = content
	return files
}

func without(files map[string]string, names ...string) map[string]string {
	files = maps.Clone(files)
	for _, name := range names {
		delete(files, name)
	}
	return files
}

func TestCheckpointIsComplete(t *testing.T) {
	const (
		model, optimizer = "mp_rank_00_model_states.pt", "zero_pp_rank_%d_mp_rank_00_optim_states.pt"
		shards           = "zero_pp_rank_%d_mp_rank_00_model_states.pt"
	)
	zero2, zero3 := tag(4, model, optimizer), tag(4, shards, "bf16_"+optimizer)
	parallel := tag(2, model, "mp_rank_01_model_states.pt", optimizer, "zero_pp_rank_%d_mp_rank_01_optim_states.pt")
	torch := map[string]string{".metadata": "\x80\x02}X\x0d__0_0.distcp X __1_0.distcp X __1_1.distcp u.", "__0_0.distcp": zipped,
		"__1_0.distcp": zipped, "__1_1.distcp": "safetensors"}
	all, second := agent.CheckpointSearch{World: 4, All: true}, agent.CheckpointSearch{World: 4, Ranks: []int{2, 3}}
	unknown := agent.CheckpointSearch{All: true}
	for _, tc := range []struct {
		name    string
		search  agent.CheckpointSearch
		files   map[string]string
		format  agent.CheckpointFormat
		missing string
	}{
		{"ZeRO-2", all, zero2, agent.DeepSpeedOptimizer, ""},
		{"a rank did not save", all, without(zero2, "zero_pp_rank_3_mp_rank_00_optim_states.pt"), agent.DeepSpeedOptimizer,
			"zero_pp_rank_3_mp_rank_00_optim_states.pt"},
		{"the model was not saved", all, without(zero2, model), agent.DeepSpeedOptimizer, model},
		{"a rank was killed while it saved", all, with(zero2, "zero_pp_rank_1_mp_rank_00_optim_states.pt", torn), agent.DeepSpeedOptimizer,
			"the end of zero_pp_rank_1_mp_rank_00_optim_states.pt"},
		{"an empty layer", all, with(zero2, "layer_01-model_00-model_states.pt", ""), agent.DeepSpeedOptimizer,
			"the end of layer_01-model_00-model_states.pt"},
		{"ZeRO-3", all, zero3, agent.DeepSpeedShards, ""},
		{"ZeRO-3 without a model", all, without(zero3, "zero_pp_rank_2_mp_rank_00_model_states.pt"), agent.DeepSpeedShards,
			"zero_pp_rank_2_mp_rank_00_model_states.pt"},
		{"ZeRO-3 without an optimizer", all, without(zero3, "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"), agent.DeepSpeedShards,
			"bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"},
		{"ZeRO-3 before the optimizer", all, tag(4, shards), agent.DeepSpeedShards,
			"zero_pp_rank_0_mp_rank_00_optim_states.pt, zero_pp_rank_1_mp_rank_00_optim_states.pt, zero_pp_rank_2_mp_rank_00_optim_states.pt " +
				"and 1 more"},
		{"no ZeRO", all, with(tag(1, model), "../latest", "step-5"), agent.DeepSpeedModel, ""},
		{"no ZeRO, or before the optimizer", all, tag(1, model), agent.DeepSpeedModel, "its name in the file latest"},
		{"this node's part without ZeRO", second, tag(1, model), agent.DeepSpeedModel, ""},
		{"a model in two parts", all, parallel, agent.DeepSpeedOptimizer, ""},
		{"a part of the model is missing", all, without(parallel, "mp_rank_01_model_states.pt"), agent.DeepSpeedOptimizer,
			"mp_rank_01_model_states.pt"},
		{"by another number of ranks", all, tag(2, model, optimizer), agent.DeepSpeedOptimizer,
			"zero_pp_rank_2_mp_rank_00_optim_states.pt, zero_pp_rank_3_mp_rank_00_optim_states.pt"},
		{"of an unknown number of ranks", unknown, tag(3, model, optimizer), agent.DeepSpeedOptimizer, ""},
		{"of an unknown number of ranks with a gap", unknown, without(zero2, "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
			agent.DeepSpeedOptimizer, "zero_pp_rank_1_mp_rank_00_optim_states.pt"},
		{"this node's part of ZeRO-2", second, without(zero2, "zero_pp_rank_0_mp_rank_00_optim_states.pt",
			"zero_pp_rank_1_mp_rank_00_optim_states.pt"), agent.DeepSpeedOptimizer, ""},
		{"node-local storage that DeepSpeed does not know of", second, without(zero2, model, "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
			agent.DeepSpeedOptimizer, model},
		{"another node's part", second, without(zero3, "zero_pp_rank_2_mp_rank_00_model_states.pt",
			"bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"), agent.DeepSpeedShards,
			"zero_pp_rank_2_mp_rank_00_model_states.pt, bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"},
		{"this node's part of a model in two", second, without(parallel, "zero_pp_rank_0_mp_rank_00_optim_states.pt",
			"zero_pp_rank_0_mp_rank_01_optim_states.pt"), agent.DeepSpeedOptimizer, ""},
		{"one of two files of this node", second, tag(1, "zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_01_model_states.pt"),
			agent.DeepSpeedOptimizer, "1 of 2 files *_optim_states.pt"},
		{"many are missing", all, tag(1, optimizer, model, shards), agent.DeepSpeedShards,
			"zero_pp_rank_1_mp_rank_00_model_states.pt, zero_pp_rank_1_mp_rank_00_optim_states.pt, zero_pp_rank_2_mp_rank_00_model_states.pt " +
				"and 3 more"},
		{"torch", all, torch, agent.TorchDistributed, ""},
		{"torch in progress", all, without(torch, ".metadata"), agent.TorchDistributed, ".metadata"},
		{"torch without a shard", all, without(torch, "__1_1.distcp"), agent.TorchDistributed, "__1_1.distcp"},
		{"torch with an empty shard", all, with(torch, "__1_1.distcp", ""), agent.TorchDistributed, "the end of __1_1.distcp"},
		{"torch with a torn shard", all, with(torch, "__0_0.distcp", torn), agent.TorchDistributed, "the end of __0_0.distcp"},
		{"torch with torn metadata", all, with(torch, ".metadata", "__0_0.distcp X"), agent.TorchDistributed, "the end of .metadata"},
		{"this node's part of torch", agent.CheckpointSearch{Ranks: []int{1}}, without(torch, "__0_0.distcp"), agent.TorchDistributed, ""},
		{"another node's part of torch", agent.CheckpointSearch{Ranks: []int{0}}, without(torch, "__0_0.distcp"), agent.TorchDistributed,
			"__0_0.distcp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range with(tc.files, "notes.txt", "") {
				write(t, filepath.Join(dir, "step-5", name), content, 0)
			}
			got, err := findCheckpoints(t.Context(), dir, tc.search)
			if err != nil || len(got) != 1 {
				t.Fatalf("got %+v, %v; want one", got, err)
			}
			if diff := cmp.Diff(agent.Checkpoint{Name: "step-5", Format: tc.format, Modified: got[0].Modified, Marked: got[0].Marked,
				Missing: tc.missing}, got[0]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// minutes returns the time so many minutes after the first file.
func minutes(n int) time.Time { return time.Unix(1_790_000_000, 0).Add(time.Duration(n) * time.Minute) }

// write writes a file that was modified minute minutes after the first file.
func write(t *testing.T, path, content string, minute int) {
	t.Helper()
	at := minutes(minute)
	path = filepath.Clean(path)
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, changed := range []string{path, folder} {
		if err := os.Chtimes(changed, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewestCheckpoints: the files decide whether a checkpoint is complete, not names and marks, because the training can
// put anything into the folder.
func TestNewestCheckpoints(t *testing.T) {
	const file, whole, half = ".metadata", "pickle.", "pick"
	for _, tc := range []struct {
		name  string
		write func(t *testing.T, dir string)
		want  []string
	}{
		{"no folder", func(*testing.T, string) {}, nil},
		{"by time, not by name", func(t *testing.T, dir string) {
			write(t, dir+"/step-9/"+file, whole, 1)
			write(t, dir+"/step-10/"+file, whole, 2)
			write(t, dir+"/step-11/"+file, whole, 0)
			write(t, dir+"/step-11/other", zipped, 3) // an evaluation wrote it
		}, []string{"step-10", "step-9", "step-11"}},
		{"newer than the mark", func(t *testing.T, dir string) {
			write(t, dir+"/a/"+file, whole, 1)
			write(t, dir+"/b/"+file, whole, 2)
			write(t, dir+"/c/"+file, whole, 3)
			write(t, dir+"/d/"+file, half, 4)
			write(t, dir+"/latest", "b\n", 2)
		}, []string{"d: the end of " + file, "c: its name in the file latest, which names b", "b", "a"}},
		{"the mark of one that is gone", func(t *testing.T, dir string) {
			write(t, dir+"/a/"+file, whole, 1)
			write(t, dir+"/latest", "b", 2)
		}, []string{"a"}},
		{"a file of its own format", func(t *testing.T, dir string) {
			write(t, dir+"/step-1", "weights", 1)
			write(t, dir+"/step-2", "weights", 2)
			write(t, dir+"/latest", "step-2", 2)
		}, []string{"step-2"}},
		{"a torn file", func(t *testing.T, dir string) {
			write(t, dir+"/step-1.pt", torn, 1)
			write(t, dir+"/latest", "step-1.pt", 1)
		}, []string{"step-1.pt: the end of step-1.pt"}},
		{"folders of their own format", func(t *testing.T, dir string) {
			write(t, dir+"/step-1/model.safetensors", "weights", 1)
			write(t, dir+"/step-2/model.safetensors", "weights", 2)
			write(t, dir+"/latest", "step-1", 1)
		}, []string{"step-1"}},
		{"an empty folder", func(t *testing.T, dir string) {
			write(t, dir+"/latest", "step-1", 1)
			if err := os.Mkdir(dir+"/step-1", 0o755); err != nil {
				t.Fatal(err)
			}
		}, []string{"step-1: all files"}},
		{"a mark that leads elsewhere", func(t *testing.T, dir string) {
			write(t, dir+"/../other/"+file, whole, 1)
			write(t, dir+"/latest", "../other", 1)
		}, nil},
		{"links and FIFOs", func(t *testing.T, dir string) {
			write(t, dir+"/../linked/"+file, whole, 1)
			write(t, dir+"/a/mp_rank_00_model_states.pt", zipped, 1)
			write(t, dir+"/a/zero_pp_rank_0_mp_rank_00_optim_states.pt", zipped, 1)
			for _, err := range []error{
				os.Symlink("../linked", dir+"/linked"),
				os.Symlink("../../linked/"+file, dir+"/a/linked.pt"),
				syscall.Mkfifo(dir+"/a/fifo.pt", 0o600),
				syscall.Mkfifo(dir+"/latest", 0o600),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}, []string{"a: the end of fifo.pt, the end of linked.pt"}},
		{"a FIFO as metadata", func(t *testing.T, dir string) {
			write(t, dir+"/a/__0_0.distcp", zipped, 0)
			if err := syscall.Mkfifo(dir+"/a/.metadata", 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"a: open DIR/a/.metadata: not a regular file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			tc.write(t, dir)
			found, err := findCheckpoints(t.Context(), dir, agent.CheckpointSearch{World: 1, All: true})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range found {
				got = append(got, strings.ReplaceAll(strings.TrimSuffix(c.Name+": "+c.Missing, ": "), dir, "DIR"))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	dir := t.TempDir()
	for i := range 2 * agent.MaxCheckpoints {
		write(t, fmt.Sprintf("%s/step-%d/%s", dir, i, file), whole, i)
	}
	write(t, dir+"/latest", "step-3", 3)
	found, err := findCheckpoints(t.Context(), dir, agent.CheckpointSearch{World: 1, All: true})
	if last := len(found) - 1; err != nil || last != agent.MaxCheckpoints-1 || found[last].Name != "step-3" || found[last].Missing != "" {
		t.Errorf("got %+v, %v; want %d, and the marked one among them", found, err, agent.MaxCheckpoints)
	}
	// So is it if the folder has more entries than the search looks at.
	dir = t.TempDir()
	write(t, dir+"/step-3/"+file, whole, 0)
	write(t, dir+"/latest", "step-3", 0)
	for i := range maxFolders + 1 {
		if err := os.Mkdir(fmt.Sprintf("%s/data-%d", dir, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	found, err = findCheckpoints(t.Context(), dir, agent.CheckpointSearch{World: 1, All: true})
	if err != nil || len(found) != 1 || !found[0].Marked || found[0].Missing != "" {
		t.Errorf("got %+v, %v; want the marked one", found, err)
	}
}

// Metadata is read in blocks; a name may be in two of them.
func TestShardsIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), ".metadata")
	for _, before := range []int{0, 1<<20 - 5, 3<<20 + 7} {
		write(t, file, strings.Repeat("x", before)+"__12_0.distcp"+strings.Repeat("y", 1<<20)+"__3_1.distcp.", 0)
		named, ended, err := shardsIn(file)
		if diff := cmp.Diff(map[string]int{"__12_0.distcp": 12, "__3_1.distcp": 3}, named); diff != "" || !ended || err != nil {
			t.Errorf("after %d bytes: ended %v, %v, (-want +got)\n%s", before, ended, err, diff)
		}
	}
}
