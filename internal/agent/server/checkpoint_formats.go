// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
)

// parts are the files of a checkpoint.
type parts struct {
	path  string
	files map[string]fs.FileInfo
	// folders are the files in its folders.
	folders map[string]map[string]fs.FileInfo
	search  agent.CheckpointSearch
	// prefix is before the names in missing.
	prefix string
	// missing are the parts that it lacks.
	missing []string
}

// Names in the checkpoints of frameworks (transformers 5.24, accelerate 1.15, Lightning 2.6).
const (
	torchMetadata   = ".metadata"
	lightningSuffix = ".ckpt"
	// lightningMeta is written when all ranks have written their shards.
	lightningMeta = "meta.pt"
	// trainerState is the last file of the first rank; others may still write their random states.
	trainerState = "trainer_state.json"
	// deepSpeedMark is also the module mlenv's.
	deepSpeedMark = "latest"
	megatronMark  = "latest_checkpointed_iteration.txt"
	// nemoWeights is the folder in a checkpoint of NeMo 2, and nemoUnfinished ends the name of a file beside one that is not finished.
	nemoWeights, nemoUnfinished = "weights", "-unfinished"
	// lightningTag is the folder of DeepSpeed.
	lightningTag = "checkpoint"
)

var (
	// trainerFolder is the Trainer's own name, which diffusers uses with accelerate.
	trainerFolder    = regexp.MustCompile(`^checkpoint-\d+$`)
	accelerateFolder = regexp.MustCompile(`^checkpoint_\d+$`)
	// trainerFile is any of the files that the Trainer writes before its state.
	trainerFile = regexp.MustCompile(`^(trainer_state\.json|training_args\.bin|rng_state(_\d+)?\.pth)$|` +
		`^(model|pytorch_model|adapter_model)\b.*\.(safetensors|bin)$`)
	weightsFile = regexp.MustCompile(`^(model|pytorch_model)\b.*\.(safetensors|bin)$`)
	// randomState is the last file of each of accelerate's ranks.
	randomState = regexp.MustCompile(`^random_states_\d{1,7}\.pkl$`)
	// accelerateParts are the folders of FSDP and DeepSpeed.
	accelerateParts = regexp.MustCompile(`^(pytorch_model_fsdp_\d+|optimizer_\d+|pytorch_model(_\d+)?)$`)
	// dcpFolder is a folder that torch.distributed.checkpoint writes for FSDP.
	dcpFolder = regexp.MustCompile(`^(pytorch_model_fsdp|optimizer)_\d+$`)
	// dcpPart is a folder of torch.distributed.checkpoint that scripts write next to others of one checkpoint.
	dcpPart, dcpOptimizer = regexp.MustCompile(`^(model|optim|optimizer)$`), regexp.MustCompile(`^(optim|optimizer)$`)
	// ofModelRank is a folder with the part of one rank of tensors and pipeline (NeMo 1, Megatron-LM).
	ofModelRank = regexp.MustCompile(`^(mp_rank_\d+(_\d+)*|tp_rank_\d+_pp_rank_\d+)$`)
	// ofRank is a file that each rank writes, ofMany one of a number of files.
	ofRank = regexp.MustCompile(`^(rng_state_|random_states_|.*_rank)(\d{1,7})(\.\w+)$`)
	ofMany = regexp.MustCompile(`^(.*-)(\d{5})-of-(\d{5})(\.\w+)$`)
	// written are the files whose end is looked at.
	written = regexp.MustCompile(`\.(pt|pth|bin|pkl|safetensors|json)$`)
)

// formatOf recognises a folder by its own name and the names of its files. What a mark names is a checkpoint whatever its own name is.
func formatOf(name string, files map[string]fs.FileInfo, marked bool) agent.CheckpointFormat {
	has := func(pattern *regexp.Regexp, dir bool) bool {
		for name, info := range files {
			if info.IsDir() == dir && pattern.MatchString(name) {
				return true
			}
		}
		return false
	}
	torch := files[torchMetadata] != nil || has(shard, false)
	parts := has(accelerateParts, true)
	switch {
	case strings.HasSuffix(name, lightningSuffix) && !marked && (torch || files[lightningTag] != nil):
		return agent.Lightning
	case torch, isNeMo(files), !marked && files["model"] != nil && files["model"].IsDir() && has(dcpOptimizer, true):
		return agent.TorchDistributed
	case has(deepSpeedFile, false):
		return agent.DeepSpeedModel // or one of its other formats
	case has(randomState, false):
		return agent.Accelerate
	case marked:
		return ""
	case trainerFolder.MatchString(name) && (parts || has(trainerFile, false)):
		return agent.Trainer
	case parts, accelerateFolder.MatchString(name) && has(weightsFile, false):
		return agent.Accelerate
	}
	return ""
}

// isNeMo reports whether a folder is a checkpoint of NeMo 2, whose weights are in a folder of torch.distributed.checkpoint.
func isNeMo(files map[string]fs.FileInfo) bool {
	weights, context := files[nemoWeights], files["context"]
	return weights != nil && weights.IsDir() && context != nil && context.IsDir()
}

// ofFramework reports whether checkpoints of the format consist of files and folders, which may be in other formats.
func ofFramework(format agent.CheckpointFormat) bool {
	return slices.Contains([]agent.CheckpointFormat{agent.Trainer, agent.Accelerate, agent.Lightning}, format)
}

// complete finds what the checkpoint lacks. It never unpickles anything.
func (c *candidate) complete() {
	switch {
	case c.folders == nil:
		c.check(filepath.Base(c.Name))
	case len(c.files) == 0 && len(c.missing) == 0:
		c.missing = []string{"all files"}
	case c.Format == agent.TorchDistributed && len(c.folders) > 0:
		for _, name := range slices.Sorted(maps.Keys(c.folders)) {
			inner := parts{path: filepath.Join(c.path, name), prefix: name + "/", files: c.folders[name], search: c.search}
			inner.torch()
			c.missing = append(c.missing, inner.missing...)
		}
	case c.Format == agent.TorchDistributed:
		c.torch()
	case ofFramework(c.Format):
		c.framework(c.Format)
	case c.Format != "":
		c.Format = c.deepSpeed()
	}
	c.Missing = humanize.First(c.missing, 3)
}

func (p *parts) want(name string) {
	if _, exists := p.files[name]; !exists && !slices.Contains(p.missing, p.prefix+name) {
		p.missing = append(p.missing, p.prefix+name)
	}
}

// wantAny wants a file of a number of files, whose names then show the others.
func (p *parts) wantAny(pattern string) {
	for name := range p.files {
		if fits, _ := filepath.Match(pattern, name); fits {
			return
		}
	}
	p.want(pattern)
}

// check notes an existing file that was not written to its end.
func (p *parts) check(name string) {
	if file, exists := p.files[name]; exists && (!file.Mode().IsRegular() || file.Size() == 0 || !whole(filepath.Join(p.path, name))) {
		p.missing = append(p.missing, "the end of "+p.prefix+name)
	}
}

// framework inspects a folder of the Trainer, accelerate or Lightning: files, and folders of DeepSpeed and torch.distributed.checkpoint.
func (p *parts) framework(format agent.CheckpointFormat) {
	families := map[[2]string]int{} // the highest rank of files that each rank writes
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		if p.files[name].IsDir() {
			p.folder(name)
		} else if written.MatchString(name) {
			p.check(name)
		}
		if m := ofMany.FindStringSubmatch(name); m != nil {
			many, _ := strconv.Atoi(m[3])
			for i := range many {
				p.want(fmt.Sprintf("%s%05d-of-%s%s", m[1], i+1, m[3], m[4]))
			}
		}
		if of, isIndex := strings.CutSuffix(name, ".index.json"); isIndex && p.files[of] == nil { // else it is left of another model
			p.wantAny(strings.TrimSuffix(of, filepath.Ext(of)) + "-*-of-*" + filepath.Ext(of))
		}
		if m := ofRank.FindStringSubmatch(name); m != nil {
			rank, _ := strconv.Atoi(m[2])
			family := [2]string{m[1], m[3]}
			families[family] = max(families[family], rank)
		}
	}
	switch random := [2]string{"random_states_", ".pkl"}; {
	case format == agent.Trainer:
		p.want(trainerState)
	case format == agent.Accelerate:
		families[random] = max(families[random], 0)
	case p.files[lightningTag] == nil:
		p.torch()
		p.want(lightningMeta)
	}
	for family, last := range families {
		for _, rank := range p.ranks(last) {
			p.want(family[0] + strconv.Itoa(rank) + family[1])
		}
	}
}

// ranks returns the ranks that write a file each, if last is the highest rank whose file exists.
func (p *parts) ranks(last int) (ranks []int) {
	if !p.search.All {
		return p.search.Ranks
	}
	for rank := range cmp.Or(p.search.World, min(last, len(p.files))+1) {
		ranks = append(ranks, rank)
	}
	return ranks
}

// folder inspects a folder in the checkpoint.
func (p *parts) folder(name string) {
	inner := parts{path: filepath.Join(p.path, name), prefix: name + "/", files: p.folders[name], search: p.search}
	switch format := formatOf("", inner.files, false); {
	case format == agent.TorchDistributed, format == "" && dcpFolder.MatchString(name):
		inner.torch()
	case format == agent.DeepSpeedModel:
		inner.deepSpeed()
		p.want(deepSpeedMark)
	}
	p.missing = append(p.missing, inner.missing...)
}

// whole reports whether a file was written to its end: a zip file, as torch.save writes it, a .safetensors or a JSON object. It returns
// true for other files.
func whole(path string) bool {
	file, err := claimfile.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	if filepath.Ext(path) == ".safetensors" {
		return wholeTensors(file)
	}
	begin, err := io.ReadAll(io.LimitReader(file, 4))
	if err != nil {
		return false
	}
	end, _, err := claimfile.ReadTail(path, zipEnd)
	switch {
	case string(begin) == "PK\x03\x04":
		return err == nil && bytes.Contains(end, []byte("PK\x05\x06"))
	case filepath.Ext(path) == ".json" && bytes.HasPrefix(begin, []byte("{")):
		return err == nil && bytes.HasSuffix(bytes.TrimSpace(end), []byte("}"))
	}
	return true
}

// wholeTensors reads the header of a .safetensors file: its length in 8 bytes, then JSON with the place of each tensor.
func wholeTensors(file *os.File) bool {
	info, err := file.Stat()
	var length uint64
	if err != nil || binary.Read(file, binary.LittleEndian, &length) != nil || length > maxMetadata {
		return false
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(file, header); err != nil {
		return false
	}
	var tensors map[string]struct {
		Offsets []int64 `json:"data_offsets"`
	}
	if json.Unmarshal(header, &tensors) != nil {
		return false
	}
	end := int64(0)
	for _, tensor := range tensors {
		for _, offset := range tensor.Offsets {
			end = max(end, offset)
		}
	}
	return end <= info.Size()-int64(length)-8
}

// shard is a name in the metadata, a pickle with plain text in it: rank R writes __R_N.distcp.
var shard = regexp.MustCompile(`__(\d{1,7})_\d{1,7}\.distcp`)

// torch inspects a folder of torch.distributed.checkpoint: the first rank writes the metadata when all ranks have written their shards.
func (p *parts) torch() {
	_, finished := p.files[torchMetadata]
	named, ended, err := shardsIn(filepath.Join(p.path, torchMetadata))
	switch {
	case !finished:
		p.want(torchMetadata)
	case err != nil:
		p.missing = append(p.missing, err.Error())
	case !ended:
		p.missing = append(p.missing, "the end of "+p.prefix+torchMetadata)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if p.search.All || slices.Contains(p.search.Ranks, named[name]) {
			p.want(name)
			p.check(name)
		}
	}
}

// shardsIn returns the ranks of the shards that metadata names, and whether the metadata has its end. For thousands of tensors on
// hundreds of ranks it has hundreds of megabytes, so it is read in blocks.
func shardsIn(path string) (named map[string]int, ended bool, err error) {
	file, err := claimfile.Open(path)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	named = map[string]int{}
	const longest = 32 // a name may be in two blocks
	block, kept := make([]byte, 1<<20), 0
	for {
		n, err := file.Read(block[kept:])
		text := block[:kept+n]
		for _, found := range shard.FindAllSubmatch(text, -1) {
			named[string(found[0])], _ = strconv.Atoi(string(found[1]))
		}
		if n > 0 {
			ended = text[len(text)-1] == '.' // the opcode STOP
		}
		switch {
		case errors.Is(err, io.EOF):
			return named, ended, nil
		case err != nil:
			return nil, false, err
		}
		kept = copy(block, text[max(0, len(text)-longest):])
	}
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
