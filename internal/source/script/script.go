// SPDX-License-Identifier: Apache-2.0

// Package script finds out which arguments of launchers and of DeepSpeed a Python script takes. It reads the script and the modules of its
// tree that the script imports, and runs none of them.
package script

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Arguments are places, as train.py:12, where a script declares arguments; "" means that it does not, as far as can be seen.
type Arguments struct {
	// LocalRank is the place of --local_rank, which DeepSpeed's launcher passes, and that of old versions of torch.
	LocalRank string `json:"localRank,omitempty"`
	// Added is the call of deepspeed.add_config_arguments, which declares --deepspeed and --deepspeed_config.
	Added string `json:"added,omitempty"`
	// Switch, Config and DashConfig are the places of the script's own --deepspeed, --deepspeed_config and --deepspeed-config.
	Switch     string `json:"switch,omitempty"`
	Config     string `json:"config,omitempty"`
	DashConfig string `json:"dashConfig,omitempty"`
	// Trainer is the place of the arguments of transformers' Trainer, where --deepspeed takes the configuration.
	Trainer string `json:"trainer,omitempty"`
}

const (
	mostFiles = 500
	mostBytes = 1 << 20
)

var (
	comment = regexp.MustCompile(`(?m)^[ \t]*#.*$`)
	// declared matches an argument of argparse, or an option of click, by one of its names.
	declared = `\b(?:add_argument|option)\(\s*(?:["'][^"'\n]*["']\s*,\s*)*["']%s["']`
	places   = []struct {
		pattern *regexp.Regexp
		of      func(*Arguments) *string
	}{
		{regexp.MustCompile(fmt.Sprintf(declared, "--local_rank")), func(a *Arguments) *string { return &a.LocalRank }},
		{regexp.MustCompile(`\badd_config_arguments\(`), func(a *Arguments) *string { return &a.Added }},
		{regexp.MustCompile(fmt.Sprintf(declared, "--deepspeed")), func(a *Arguments) *string { return &a.Switch }},
		{regexp.MustCompile(fmt.Sprintf(declared, "--deepspeed_config")), func(a *Arguments) *string { return &a.Config }},
		{regexp.MustCompile(fmt.Sprintf(declared, "--deepspeed-config")), func(a *Arguments) *string { return &a.DashConfig }},
		{regexp.MustCompile(`\b(?:HfArgumentParser|TrlParser)\(`), func(a *Arguments) *string { return &a.Trainer }},
	}
	// alias matches a shorter name of add_argument.
	alias = regexp.MustCompile(`(?m)^\s*(\w+)\s*=\s*[\w.]+\.add_argument\s*$`)
	// field matches local_rank as a field of a class that classParser makes arguments of, with both its spellings.
	field = regexp.MustCompile(`(?:@[\w.]*dataclass\b[^\n]*\nclass |\bclass \w+\(Tap\b)[^\n]*\n` +
		`(?:[ \t]+[^\n]*\n|[ \t]*\n)*?[ \t]+local_rank[ \t]*:`)
	classParser = regexp.MustCompile(`\b(?:HfArgumentParser\(|TrlParser\(|simple_parsing\b|import Tap\b)`)
	imports     = regexp.MustCompile(`(?m)^\s*(?:import\s+([\w., \t]+)|from\s+(\.*)([\w.]*)\s+import\s+(\([^)]*\)|[^\n]*))`)
	name        = regexp.MustCompile(`\w+`)
)

// Read reads the first of the files that exists, such as those of a module, and what it imports. Modules are searched in the folder from.
func Read(tree fs.FS, files []string, from string) (found Arguments) {
	start := slices.IndexFunc(files, func(file string) bool { return isFile(tree, file) })
	if start < 0 {
		return found
	}
	fields, parses := "", false
	waiting := []string{path.Clean(files[start])}
	for seen := 0; seen < len(waiting) && seen < mostFiles; seen++ {
		file := waiting[seen]
		text := comment.ReplaceAll(read(tree, file), nil)
		for _, short := range alias.FindAllSubmatch(text, -1) {
			text = regexp.MustCompile(`\b`+string(short[1])+`\(`).ReplaceAll(text, []byte("add_argument("))
		}
		place := func(end int) string { return fmt.Sprintf("%s:%d", file, 1+bytes.Count(text[:end], []byte("\n"))) }
		for _, p := range places {
			if at := p.pattern.FindIndex(text); at != nil && *p.of(&found) == "" {
				*p.of(&found) = place(at[0])
			}
		}
		if at := field.FindIndex(text); at != nil && fields == "" {
			fields = place(at[1])
		}
		parses = parses || classParser.Match(text)
		for _, imported := range importedBy(tree, string(text), path.Dir(file), from) {
			if !slices.Contains(waiting, imported) {
				waiting = append(waiting, imported)
			}
		}
	}
	if parses {
		found.LocalRank = cmp.Or(found.LocalRank, fields)
	}
	return found
}

// importedBy returns the files of the tree that a file's imports run.
func importedBy(tree fs.FS, text, dir, from string) (files []string) {
	for _, match := range imports.FindAllStringSubmatch(text, -1) {
		for module := range strings.SplitSeq(match[1], ",") {
			module, _, _ = strings.Cut(strings.TrimSpace(module), " ") // without as NAME
			files = append(files, moduleFiles(tree, from, module)...)
		}
		folder := from
		if dots := len(match[2]); dots > 0 {
			folder = path.Join(dir, strings.Repeat("../", dots-1))
		}
		if match[4] == "" {
			continue
		}
		files = append(files, moduleFiles(tree, folder, match[3])...)
		for _, one := range name.FindAllString(match[4], -1) {
			files = append(files, moduleFiles(tree, path.Join(folder, strings.ReplaceAll(match[3], ".", "/")), one)...)
		}
	}
	return files
}

// moduleFiles returns the files that an import of the dotted name runs, if it is in the folder, or else at the top of the tree, which
// scripts add to their path.
func moduleFiles(tree fs.FS, folder, module string) (files []string) {
	if module == "" {
		return nil
	}
	if top, _, _ := strings.Cut(module, "."); !isFile(tree, path.Join(folder, top)+".py") && !isFolder(tree, path.Join(folder, top)) {
		folder = "."
	}
	for part := range strings.SplitSeq(module, ".") {
		folder = path.Join(folder, part)
		for _, file := range []string{folder + ".py", path.Join(folder, "__init__.py")} {
			if isFile(tree, file) {
				files = append(files, file)
				break
			}
		}
	}
	return files
}

func isFile(tree fs.FS, file string) bool {
	info, err := fs.Stat(tree, path.Clean(file))
	return err == nil && info.Mode().IsRegular()
}

func isFolder(tree fs.FS, dir string) bool {
	info, err := fs.Stat(tree, dir)
	return err == nil && info.IsDir()
}

func read(tree fs.FS, file string) []byte {
	opened, err := tree.Open(file)
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(opened, mostBytes)) // what can be read of it
	_ = opened.Close()                                       // it was only read
	return text
}
