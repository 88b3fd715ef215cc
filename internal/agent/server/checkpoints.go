// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
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
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/treestore"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// Bounds of a search for checkpoints: the training writes these files.
const (
	maxFiles    = 1 << 16 // of a folder
	maxFolders  = 1 << 13
	maxMark     = 4 << 10
	maxMetadata = 64 << 20
	zipEnd      = 8 << 10 // how far before its end a zip file has its directory's end; writers may pad it
)

// checkpoints answers what this node's workspace has of a run's checkpoints.
func (s *Server) checkpoints(w http.ResponseWriter, r *http.Request, search agent.CheckpointSearch) error {
	if !filepath.IsLocal(search.Folder) {
		return fail.Becausef(fail.InvalidInput, "looking for checkpoints in %q: want a folder below the workspace", search.Folder)
	}
	if search.Job != "" && !agent.IsJobID(search.Job) {
		return fail.Becausef(fail.InvalidInput, "looking for checkpoints of job %q: want the ID of a job", search.Job)
	}
	found, err := findCheckpoints(r.Context(), filepath.Join(s.config.Paths.Workspace, search.Folder), search)
	if err == nil && search.Job != "" {
		jobs := []string{search.Job}
		if search.Series != "" {
			jobs = append(jobs, s.jobs.earlier(search.Job, search.Series)...)
		}
		for _, job := range jobs {
			inWork, workErr := s.config.Paths.CheckpointsIn(r.Context(), job, search)
			found, err = append(found, inWork...), errors.Join(err, workErr)
		}
	}
	if err != nil {
		return fmt.Errorf("looking for checkpoints: %w", err)
	}
	return answer(w, newest(found))
}

// CheckpointsIn finds those in the working directory of a job. Files of its tree are none, whatever their names are.
func (p Paths) CheckpointsIn(ctx context.Context, job string, search agent.CheckpointSearch) ([]agent.Checkpoint, error) {
	laid, err := treestore.LaidIn(p.stateDir(), job)
	if err != nil {
		return nil, err
	}
	f := finder{ctx: ctx, root: filepath.Join(p.Workspace, agent.WorkFolder, job), search: search,
		skip: func(name string) bool { return laid.Has(name, false) }}
	found, err := f.checkpoints()
	for i := range found {
		found[i].Job = job
	}
	return found, err
}

// newest selects as many as a client reads, the newest first, with those that a mark names.
func newest(found []agent.Checkpoint) []agent.Checkpoint {
	slices.SortStableFunc(found, func(a, b agent.Checkpoint) int { return b.Modified.Compare(a.Modified) })
	for i := len(found) - 1; i >= 0 && len(found) > agent.MaxCheckpoints; i-- {
		if !found[i].Marked {
			found = slices.Delete(found, i, i+1)
		}
	}
	return found[:min(len(found), agent.MaxCheckpoints)]
}

// findCheckpoints finds the newest checkpoints below a folder, and those that a mark names. A missing folder has no checkpoints.
func findCheckpoints(ctx context.Context, path string, search agent.CheckpointSearch) ([]agent.Checkpoint, error) {
	f := finder{ctx: ctx, root: path, search: search}
	return f.checkpoints()
}

func (f *finder) checkpoints() ([]agent.Checkpoint, error) {
	if err := f.walk(); err != nil {
		return nil, err
	}
	// The bound is on how many are read. What a mark names is among them.
	slices.SortStableFunc(f.found, func(a, b *candidate) int { return b.Modified.Compare(a.Modified) })
	if i := slices.IndexFunc(f.found, func(c *candidate) bool { return c.Marked }); i >= agent.MaxCheckpoints {
		f.found[agent.MaxCheckpoints-1] = f.found[i]
	}
	all := []agent.Checkpoint{}
	for _, c := range f.found[:min(len(f.found), agent.MaxCheckpoints)] {
		if err := f.ctx.Err(); err != nil {
			return nil, err
		}
		c.complete()
		marked := c.sibling
		switch {
		case c.Missing != "" || c == marked:
		case marked != nil && c.Modified.After(marked.Modified):
			c.Missing = fmt.Sprintf("its name in the file %s, which names %s", marked.mark, filepath.Base(marked.Name))
		case marked == nil && f.search.All && c.Format == agent.DeepSpeedModel && c.Modified.After(c.nameless):
			// With ZeRO, the model is written before the first file of the optimizer.
			c.Missing = "its name in the file latest"
		}
		all = append(all, c.Checkpoint)
	}
	if len(f.found) == 0 && f.skip == nil { // a repository has folders with such names
		all = newest(f.unmarked)
	}
	return all, nil
}

// finder walks a folder, level by level: frameworks write their checkpoints some levels down, next to other folders.
type finder struct {
	ctx    context.Context
	root   string
	search agent.CheckpointSearch
	// skip reports whether a file, by its path, is not part of a checkpoint; nil for none.
	skip func(name string) bool
	// folders is how many were listed.
	folders int
	found   []*candidate
	// unmarked are folders with names of checkpoints, in no known format and without a mark next to them.
	unmarked []agent.Checkpoint
}

// candidate is a checkpoint whose content has not been looked at.
type candidate struct {
	agent.Checkpoint
	parts
	// mark is the file that names it, sibling the one in the same folder that has a mark, nil for none.
	mark    string
	sibling *candidate
	// nameless is when a mark in the same folder was written that names none of its entries, because it was not written to its end or
	// what it named was deleted. DeepSpeed writes the mark when all files of the checkpoint are there.
	nameless time.Time
}

func (f *finder) walk() error {
	level := []string{"."}
	for range agent.CheckpointLevels {
		var below []string
		for _, folder := range level {
			entries, err := f.list(folder)
			if folder == "." && err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			below = append(below, f.look(folder, entries)...)
			if err := f.ctx.Err(); err != nil {
				return err
			}
		}
		level = below
	}
	return nil
}

// list returns the entries of a folder below the root.
func (f *finder) list(folder string) (map[string]fs.FileInfo, error) {
	if f.folders++; f.folders > maxFolders {
		return nil, nil
	}
	entries, err := entriesOf(filepath.Join(f.root, folder))
	if f.skip != nil {
		maps.DeleteFunc(entries, func(name string, info fs.FileInfo) bool { return !info.IsDir() && f.skip(filepath.Join(folder, name)) })
	}
	return entries, err
}

// look adds the checkpoints in a folder to those found, and returns its other folders. Of a folder with a mark it returns none: what is
// newer than the one that the mark names was not finished.
func (f *finder) look(folder string, entries map[string]fs.FileInfo) (below []string) {
	mark, named := markIn(filepath.Join(f.root, folder), entries)
	newest := slices.SortedFunc(maps.Values(entries), func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	if i := slices.IndexFunc(newest, func(e fs.FileInfo) bool { return e.Name() == named }); i >= 0 {
		newest = slices.Insert(slices.Delete(newest, i, i+1), 0, entries[named]) // it is within the bounds
	}
	var here []*candidate
	var marked *candidate
	for _, entry := range newest {
		name := entry.Name()
		if !agent.IsCheckpointName(name) || !entry.IsDir() && !entry.Mode().IsRegular() {
			continue
		}
		c := f.candidate(filepath.Join(folder, name), entry, name == named)
		if unfinished := strings.TrimSuffix(name, lightningSuffix) + nemoUnfinished; entries[unfinished] != nil {
			c.missing = append(c.missing, "its end, as "+unfinished+" beside it shows")
		}
		if ofModelRank.MatchString(filepath.Base(folder)) {
			c.missing = append(c.missing, "the parts of the other ranks, next to "+filepath.Base(folder))
		}
		switch {
		case name == named:
			marked, c.Marked, c.mark = c, true, mark
			here = append(here, c)
		case c.Format == agent.TorchDistributed && dcpPart.MatchString(name):
			continue // of a checkpoint whose other folders are missing
		case c.Format != "":
			here = append(here, c)
		case entry.IsDir():
			if numbered.MatchString(name) {
				f.unmarked = append(f.unmarked, agent.Checkpoint{Name: c.Name, Modified: c.Modified,
					Missing: fmt.Sprintf("its name in a file %s or %s", deepSpeedMark, megatronMark)})
			}
			below = append(below, filepath.Join(folder, name))
		}
	}
	for _, c := range here {
		if latest := entries[deepSpeedMark]; latest != nil && marked == nil {
			c.nameless = latest.ModTime()
		}
		c.sibling = marked
	}
	f.found = append(f.found, here...)
	if marked != nil {
		return nil
	}
	return below
}

// markIn returns the file that names the newest finished checkpoint of a folder, and that name, both "" without one. DeepSpeed and the
// module mlenv write the name into the file latest; Megatron-LM and verl write a number.
func markIn(path string, entries map[string]fs.FileInfo) (mark, name string) {
	for _, mark := range []string{deepSpeedMark, megatronMark} {
		if entries[mark] == nil {
			continue
		}
		content, _ := claimfile.Read(filepath.Join(path, mark), maxMark)
		names := []string{strings.TrimSpace(string(content))}
		if number, err := strconv.Atoi(names[0]); err == nil && mark == megatronMark {
			names = []string{fmt.Sprintf("iter_%07d", number), fmt.Sprintf("global_step_%d", number)}
		}
		for _, name := range names {
			if entries[name] != nil {
				return mark, name
			}
		}
	}
	return "", ""
}

func (f *finder) candidate(name string, entry fs.FileInfo, marked bool) *candidate {
	c := &candidate{Checkpoint: agent.Checkpoint{Name: name, Modified: entry.ModTime()}}
	c.parts = parts{path: filepath.Join(f.root, name), search: f.search}
	if !entry.IsDir() {
		c.path, c.files = filepath.Dir(c.path), map[string]fs.FileInfo{entry.Name(): entry}
		if strings.HasSuffix(name, lightningSuffix) {
			c.Format = agent.Lightning
		}
		return c
	}
	var err error
	if c.files, err = f.list(name); err != nil {
		c.missing = []string{err.Error()}
	}
	c.Format = formatOf(entry.Name(), c.files, marked)
	c.folders = map[string]map[string]fs.FileInfo{}
	for file, info := range c.files {
		inParts := c.Format == agent.TorchDistributed && c.files[torchMetadata] == nil &&
			(dcpPart.MatchString(file) || file == nemoWeights && isNeMo(c.files))
		if info.IsDir() && (ofFramework(c.Format) || inParts) {
			c.folders[file], _ = f.list(filepath.Join(name, file))
		}
	}
	c.Modified = cmp.Or(c.written(dated.MatchString), c.written(func(string) bool { return true }), c.Modified)
	return c
}

// numbered matches names that trainings give to checkpoints.
var numbered = regexp.MustCompile(`(?i)^(global_?)?(step|iter|iteration|epoch|checkpoint|ckpt)[-_=]?\d+`)

// dated matches files that frameworks write once, at each save. Others may be written later, such as results of an evaluation, and the
// time of a folder changes when a file in it is deleted.
var dated = regexp.MustCompile(`^(trainer_state\.json|rng_state(_\d+)?\.pth|random_states_\d+\.pkl|\.metadata|.*_states\.pt)$`)

// written returns when the newest of the files with such names was written, zero if there is none.
func (c *candidate) written(such func(name string) bool) (last time.Time) {
	for _, files := range append(slices.Collect(maps.Values(c.folders)), c.files) {
		for name, file := range files {
			if such(name) && file.ModTime().After(last) {
				last = file.ModTime()
			}
		}
	}
	return last
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
