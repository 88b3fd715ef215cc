package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

const (
	treeFiles = 2000
	treeBytes = 20_000_000
)

// benchSync copies a tree to four nodes in several ways. Each time the tree is new, because the
// nodes would recognize an old one.
func benchSync(ctx context.Context, p *place, runs int) error {
	environments := []string{"tree-a", "tree-b"}
	var of []node
	for _, name := range environments {
		p.say("  provisioning %s, two nodes with a volume each", name)
		if err := p.provision(ctx, name, "volumeClaimTemplates"); err != nil {
			return err
		}
		of = append(of, node{name, 0}, node{name, 1})
	}
	set, err := p.agents(ctx, of)
	if err != nil {
		return err
	}
	defer set.Close()
	if _, err := set[0].Facts(ctx); err != nil {
		return err
	}
	var whole, again, copied, streamed, file []float64
	for i := range runs {
		dir := filepath.Join(p.work, "tree-"+strconv.Itoa(i))
		if err := writeTree(dir, uint64(time.Now().UnixNano())); err != nil {
			return err
		}
		ways := []struct {
			what string
			into *[]float64
			run  func() error
		}{
			{"sync", &whole, func() error { return sendTree(ctx, set, dir) }},
			{"tar | kubectl exec", &streamed, func() error { return p.tarToAll(ctx, dir, of, "tar-"+strconv.Itoa(i)) }},
			{"kubectl cp", &copied, func() error { return p.copyToAll(ctx, dir, of, "copy-"+strconv.Itoa(i)) }},
			{"sync of one changed file", &again, func() error {
				return errors.Join(os.WriteFile(filepath.Join(dir, changedFile), []byte("changed "+strconv.Itoa(i)), 0o644), sendTree(ctx, set, dir))
			}},
			{"kubectl cp of that file", &file, func() error { return p.copyToAll(ctx, filepath.Join(dir, changedFile), of, "file-"+strconv.Itoa(i)) }},
		}
		// Each round begins with another way, because the disk is still busy with the files of the
		// previous way.
		const wholeTree = 3
		first := i % wholeTree
		for _, way := range slices.Concat(ways[first:wholeTree], ways[:first], ways[wholeTree:]) {
			start := time.Now()
			if err := way.run(); err != nil {
				return fmt.Errorf("%s: %w", way.what, err)
			}
			*way.into = append(*way.into, since(start))
			p.say("  %d of %d: %s took %.2f s", i+1, runs, way.what, since(start))
		}
		// Nothing is deleted until the end, because ext4 creates files slowly right after deleting
		// others.
	}
	p.part(fmt.Sprintf("sync of %d MB in %d files to 4 nodes", treeBytes/1_000_000, treeFiles),
		"the nodes are the pods of two environments of two nodes on two Kubernetes nodes, each pod with a volume of its own; text, new each time",
		"scan, compression, confirmation by all nodes and the switch are included; sender and all four receivers share the cores")
	p.measured("sync", "s", whole)
	p.measured("kubectl cp to the 4 pods in turn", "s", copied, times(copied, whole, 8, "as long as sync"))
	p.measured("tar | kubectl exec to the 4 pods at once", "s", streamed, times(streamed, whole, 4, "as long as sync"))
	p.measured("sync again after one file changed, scan included", "s", again, less(again, 0.3, "the aim of 0.3 s"))
	p.measured("kubectl cp of just that file, in turn", "s", file, times(file, again, 0, "as long as sync"))
	for _, name := range environments {
		if err := p.teardown(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

const changedFile = "package-3/module-33.py"

// writeTree writes source-like text: it compresses as text does, and no two files are equal.
func writeTree(dir string, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("def return self import torch tensor for in range if else None True False model loss batch size rank step = + ( ) [ ] : , . config data")
	const folders = 20
	for i := range treeFiles {
		folder := filepath.Join(dir, "package-"+strconv.Itoa(i%folders))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		var text bytes.Buffer
		for text.Len() < treeBytes/treeFiles {
			text.WriteString(words[random.IntN(len(words))])
			text.WriteByte(' ')
			if random.IntN(8) == 0 {
				fmt.Fprintf(&text, "name_%x\n", random.Uint32())
			}
		}
		text.Truncate(treeBytes / treeFiles)
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("module-%d.py", i/folders)), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func sendTree(ctx context.Context, set nodes.Set, dir string) error {
	_, err := syncrepo.SendFolder(ctx, slog.New(slog.DiscardHandler), set, syncrepo.Folder{Dir: dir})
	return err
}

// copyToAll runs kubectl cp to one pod after another.
func (p *place) copyToAll(ctx context.Context, from string, to []node, name string) error {
	for _, n := range to {
		if _, err := p.kubectl(ctx, "cp", from, p.name+"/"+n.pod()+":/workspace/"+name); err != nil {
			return err
		}
	}
	return nil
}

// tarToAll runs tar | kubectl exec for all pods in parallel.
func (p *place) tarToAll(ctx context.Context, from string, to []node, name string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range to {
		group.Go(func() error {
			pack := exec.CommandContext(ctx, "tar", "-C", from, "-cf", "-", ".")
			unpack := exec.CommandContext(ctx, kubectlProgram, p.kubectlArgs("exec", "-i", n.pod(), "--", "sh", "-c", "mkdir -p /workspace/"+name+" && tar -C /workspace/"+name+" -xf -")...)
			var said bytes.Buffer
			pack.Stderr, unpack.Stderr = &said, &said
			reader, writer := io.Pipe()
			pack.Stdout, unpack.Stdin = writer, reader
			if err := unpack.Start(); err != nil {
				return err
			}
			packed := pack.Run()
			err := errors.Join(packed, writer.Close(), unpack.Wait())
			if err != nil {
				return fmt.Errorf("%w\n%s", err, &said)
			}
			return nil
		})
	}
	return group.Wait()
}
