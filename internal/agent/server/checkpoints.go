package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// Bounds of a search for checkpoints: the training writes these files.
const (
	maxFiles    = 1 << 16 // of a folder
	maxMark     = 4 << 10
	maxMetadata = 64 << 20
	zipEnd      = 8 << 10 // how far before its end a zip file has its directory's end; writers may pad it
)

// checkpoints answers what this node's workspace has of a run's checkpoints.
func (s *Server) checkpoints(w http.ResponseWriter, r *http.Request, search agent.CheckpointSearch) error {
	if !filepath.IsLocal(search.Folder) {
		return fail.Becausef(fail.InvalidInput, "looking for checkpoints in %q: want a folder below the workspace", search.Folder)
	}
	found, err := findCheckpoints(r.Context(), filepath.Join(s.config.Paths.Workspace, search.Folder), search)
	if err != nil {
		return fmt.Errorf("looking for checkpoints: %w", err)
	}
	return answer(w, found)
}

// findCheckpoints looks at the newest entries of a folder, and at the one that the file `latest` names, as DeepSpeed and the
// module mlenv write it. Whatever is newer than that one was not finished. A missing folder has no checkpoints.
func findCheckpoints(ctx context.Context, path string, search agent.CheckpointSearch) ([]agent.Checkpoint, error) {
	entries, err := entriesOf(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	content, _ := claimfile.Read(filepath.Join(path, "latest"), maxMark)
	mark := strings.TrimSpace(string(content))
	newest := slices.SortedFunc(maps.Values(entries), func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	if i := slices.IndexFunc(newest, func(e fs.FileInfo) bool { return e.Name() == mark }); i >= 0 {
		newest = slices.Insert(slices.Delete(newest, i, i+1), 0, entries[mark])
	}
	all := []agent.Checkpoint{}
	for _, entry := range newest {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(all) == agent.MaxCheckpoints || !agent.IsCheckpointName(entry.Name()) || !entry.IsDir() && entry.Name() != mark {
			continue
		}
		if c := checkpoint(filepath.Join(path, entry.Name()), entry, search); c.Format != "" || c.Name == mark {
			all = append(all, c)
		}
	}
	marked := len(all) > 0 && all[0].Name == mark
	if marked {
		all[0].Marked = true
	}
	for i, c := range all {
		switch {
		case c.Missing != "":
		case marked && c.Modified.After(all[0].Modified):
			all[i].Missing = fmt.Sprintf("its name in the file latest, which names %s", mark)
		case !marked && search.All && c.Format == agent.DeepSpeedModel:
			// With ZeRO, the model is written before the first file of the optimizer.
			all[i].Missing = "its name in the file latest"
		}
	}
	slices.SortStableFunc(all, func(a, b agent.Checkpoint) int { return b.Modified.Compare(a.Modified) })
	return all, nil
}

// entriesOf returns the entries of a folder, by name. It follows no link, and the bound is on their number.
func entriesOf(path string) (map[string]fs.FileInfo, error) {
	const folder = syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	dir, err := os.OpenFile(path, os.O_RDONLY|folder, 0) //nolint:forbidigo // package claimfile opens files
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.Readdir(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	byName := make(map[string]fs.FileInfo, len(entries))
	for _, entry := range entries {
		byName[entry.Name()] = entry
	}
	return byName, nil
}

// parts are the files of a checkpoint.
type parts struct {
	path   string
	files  map[string]fs.FileInfo
	search agent.CheckpointSearch
	// missing are the parts that it lacks.
	missing []string
}

// checkpoint recognises the format of a file or folder by the names in it, and finds what it lacks. It never unpickles anything.
func checkpoint(path string, entry fs.FileInfo, search agent.CheckpointSearch) agent.Checkpoint {
	c := agent.Checkpoint{Name: entry.Name(), Modified: entry.ModTime()}
	p := parts{path: path, search: search}
	if !entry.IsDir() {
		p.path, p.files = filepath.Dir(path), map[string]fs.FileInfo{c.Name: entry}
		p.check(c.Name)
	} else {
		var err error
		if p.files, err = entriesOf(path); err != nil {
			p.missing = []string{err.Error()}
		} else if len(p.files) == 0 {
			p.missing = []string{"all files"}
		}
		for _, file := range p.files {
			if file.ModTime().After(c.Modified) {
				c.Modified = file.ModTime()
			}
		}
		if c.Format = p.torch(); c.Format == "" {
			c.Format = p.deepSpeed()
		}
	}
	c.Missing = humanize.First(p.missing, 3)
	return c
}

func (p *parts) want(name string) {
	if _, exists := p.files[name]; !exists {
		p.missing = append(p.missing, name)
	}
}

// check notes an existing file that was not written to its end.
func (p *parts) check(name string) {
	if file, exists := p.files[name]; exists && (!file.Mode().IsRegular() || file.Size() == 0 || !whole(filepath.Join(p.path, name))) {
		p.missing = append(p.missing, "the end of "+name)
	}
}

// whole reports whether a zip file, as torch.save writes it, has its end. It returns true for other files.
func whole(path string) bool {
	file, err := claimfile.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	begin := make([]byte, 4)
	if _, err := io.ReadFull(file, begin); err != nil || string(begin) != "PK\x03\x04" {
		return true
	}
	end, _, err := claimfile.Tail(path, zipEnd)
	return err == nil && bytes.Contains(end, []byte("PK\x05\x06"))
}

const torchMetadata = ".metadata"

// shard is a name in the metadata, a pickle with plain text in it: rank R writes __R_N.distcp.
var shard = regexp.MustCompile(`__(\d{1,7})_\d{1,7}\.distcp`)

// torch is for torch.distributed.checkpoint: the first rank writes the metadata when all ranks have written their shards.
func (p *parts) torch() agent.CheckpointFormat {
	_, finished := p.files[torchMetadata]
	if !finished && !slices.ContainsFunc(slices.Collect(maps.Keys(p.files)), shard.MatchString) {
		return ""
	}
	content, err := claimfile.Read(filepath.Join(p.path, torchMetadata), maxMetadata)
	switch {
	case !finished:
		p.missing = append(p.missing, torchMetadata)
	case err != nil:
		p.missing = append(p.missing, err.Error())
	case !bytes.HasSuffix(content, []byte(".")): // the opcode STOP
		p.missing = append(p.missing, "the end of "+torchMetadata)
	}
	named := map[string]bool{}
	for _, found := range shard.FindAllSubmatch(content, -1) {
		rank, _ := strconv.Atoi(string(found[1]))
		if name := string(found[0]); !named[name] && (p.search.All || slices.Contains(p.search.Ranks, rank)) {
			named[name] = true
			p.want(name)
			p.check(name)
		}
	}
	return agent.TorchDistributed
}

// deepSpeedFile has the rank in its ZeRO group, for files that each rank has, and the rank in its model-parallel group.
var deepSpeedFile = regexp.MustCompile(`^(bf16_)?(?:zero_pp_rank_(\d{1,7})_)?mp_rank_(\d{1,7})_(model|optim)_states\.pt$`)

// deepSpeed is for the folder of a tag: mp_rank_00_model_states.pt, or with ZeRO-3 one for each rank, and with ZeRO or bf16
// zero_pp_rank_0_mp_rank_00_optim_states.pt for each rank.
func (p *parts) deepSpeed() agent.CheckpointFormat {
	format := agent.CheckpointFormat("")
	models := map[string]bool{}          // the ranks in model-parallel groups
	last, optimizers, prefix := 0, 0, "" // last is the highest rank in a ZeRO group
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		if strings.HasSuffix(name, ".pt") {
			p.check(name)
		}
		found := deepSpeedFile.FindStringSubmatch(name)
		if found == nil {
			continue
		}
		models[found[3]] = true
		rank, _ := strconv.Atoi(found[2])
		last = max(last, rank)
		switch {
		case found[4] == "optim":
			format, prefix = max(format, agent.DeepSpeedOptimizer), found[1]
			optimizers++
		case found[2] != "":
			format = agent.DeepSpeedShards
		default:
			format = max(format, agent.DeepSpeedModel)
		}
	}
	if format == "" {
		return ""
	}
	group := min(last, len(p.files)) + 1 // ranks of a ZeRO group
	if p.search.World > 0 {
		group = p.search.World / len(models)
	}
	ranks := p.search.Ranks
	if p.search.All {
		ranks = nil
		for rank := range group {
			ranks = append(ranks, rank)
		}
	}
	if !p.search.All && len(models) > 1 {
		// Which node has which rank of a model-parallel group is the script's to decide; each rank has one file.
		if missing := len(ranks) - optimizers; optimizers > 0 && missing > 0 {
			p.missing = append(p.missing, fmt.Sprintf("%d of %d files *_optim_states.pt", missing, len(ranks)))
		}
		ranks, models = nil, nil
	}
	if len(models)*len(ranks) > maxFiles {
		p.missing = append(p.missing, "files of too many ranks to count")
		return format
	}
	for model := range len(models) {
		if format != agent.DeepSpeedShards {
			p.want(fmt.Sprintf("mp_rank_%02d_model_states.pt", model))
		}
		for _, rank := range ranks {
			if format == agent.DeepSpeedShards {
				p.want(fmt.Sprintf("zero_pp_rank_%d_mp_rank_%02d_model_states.pt", rank, model))
			}
			if optimizers > 0 || format == agent.DeepSpeedShards {
				p.want(fmt.Sprintf("%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt", prefix, rank, model))
			}
		}
	}
	return format
}
