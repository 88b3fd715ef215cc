//go:build e2e

package bench

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
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/steps/syncrepo"
)

const (
	treeFiles = 2000
	treeBytes = 20_000_000
)

// BenchmarkSync copies a tree to four nodes in several ways. Each time the tree is new, because the nodes would recognize
// an old one.
func BenchmarkSync(b *testing.B) {
	ctx, ns := b.Context(), installed(b)
	environments := []string{"tree-a", "tree-b"}
	var of []node
	for _, name := range environments {
		check(b, ns.provision(ctx, name, "volumeClaimTemplates"))
		of = append(of, node{name, 0}, node{name, 1})
	}
	set, err := ns.agents(ctx, of)
	check(b, err)
	defer set.Close()
	_, err = set[0].Facts(ctx)
	check(b, err)
	var whole, again, copied, streamed, file []float64
	for i := 0; b.Loop(); i++ {
		dir := filepath.Join(ns.work, "tree-"+strconv.Itoa(i))
		check(b, writeTree(dir, uint64(time.Now().UnixNano())))
		ways := []struct {
			what string
			into *[]float64
			run  func() error
		}{
			{"sync", &whole, func() error { return sendTree(ctx, set, dir) }},
			{"tar | kubectl exec", &streamed, func() error { return ns.tarToAll(ctx, dir, of, "tar-"+strconv.Itoa(i)) }},
			{"kubectl cp", &copied, func() error { return ns.copyToAll(ctx, dir, of, "copy-"+strconv.Itoa(i)) }},
			{"sync of one changed file", &again, func() error {
				return errors.Join(os.WriteFile(filepath.Join(dir, changedFile), []byte("changed "+strconv.Itoa(i)), 0o644), sendTree(ctx, set, dir))
			}},
			{"kubectl cp of that file", &file, func() error { return ns.copyToAll(ctx, filepath.Join(dir, changedFile), of, "file-"+strconv.Itoa(i)) }},
		}
		// Each round begins with another way, because the disk is still busy with the files of the
		// previous way.
		const wholeTree = 3
		first := i % wholeTree
		for _, way := range slices.Concat(ways[first:wholeTree], ways[:first], ways[wholeTree:]) {
			start := time.Now()
			if err := way.run(); err != nil {
				b.Fatalf("%s: %v", way.what, err)
			}
			*way.into = append(*way.into, since(start))
		}
		// Nothing is deleted until the end, because ext4 creates files slowly right after deleting
		// others.
	}
	printTitle(fmt.Sprintf("sync of %d MB in %d files to 4 nodes", treeBytes/1_000_000, treeFiles),
		"the nodes are the pods of two environments of two nodes on two Kubernetes nodes, each pod with a volume of its own; text, new each time",
		"scan, compression, confirmation by all nodes and the switch are included; sender and all four receivers share the cores")
	printLine("sync", "s", whole)
	printLine("kubectl cp to the 4 pods in turn", "s", copied, times(copied, whole, 8, "as long as sync"))
	printLine("tar | kubectl exec to the 4 pods at once", "s", streamed, times(streamed, whole, 4, "as long as sync"))
	printLine("sync again after one file changed, scan included", "s", again, less(again, 0.3, "the aim of 0.3 s"))
	printLine("kubectl cp of just that file, in turn", "s", file, times(file, again, 0, "as long as sync"))
	for _, name := range environments {
		check(b, ns.teardown(ctx, name))
	}
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
func (ns *namespace) copyToAll(ctx context.Context, from string, to []node, name string) error {
	for _, n := range to {
		if _, err := ns.kubectl(ctx, "cp", from, ns.name+"/"+n.pod()+":/workspace/"+name); err != nil {
			return err
		}
	}
	return nil
}

// tarToAll runs tar | kubectl exec for all pods in parallel.
func (ns *namespace) tarToAll(ctx context.Context, from string, to []node, name string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range to {
		group.Go(func() error {
			pack := exec.CommandContext(ctx, "tar", "-C", from, "-cf", "-", ".")
			unpack := exec.CommandContext(ctx, kubectlProgram, ns.kubectlArgs("exec", "-i", n.pod(), "--", "sh", "-c", "mkdir -p /workspace/"+name+" && tar -C /workspace/"+name+" -xf -")...)
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
