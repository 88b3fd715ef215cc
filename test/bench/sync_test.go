// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"bytes"
	"context"
	"fmt"
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
	"github.com/ml-dev-env/ml-dev-env/test/bench/report"
)

const (
	treeFiles = 2000
	treeBytes = 20_000_000
)

// BenchmarkSync copies a tree to four nodes in several ways. Each round has a new tree, because the nodes would
// recognize an old one.
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
	ways := []*way{
		{name: "mlenv sync",
			whole:   func(dir string) error { return sendTree(ctx, set, dir) },
			changed: func(dir string) error { return sendTree(ctx, set, dir) }},
		{name: "tar \\| kubectl exec",
			whole:   func(dir string) error { return ns.tarToAll(ctx, dir, ".", of) },
			changed: func(dir string) error { return ns.tarToAll(ctx, dir, changedFile, of) }},
		{name: "kubectl cp",
			whole:   func(dir string) error { return ns.copyToAll(ctx, dir, "", of) },
			changed: func(dir string) error { return ns.copyToAll(ctx, dir, changedFile, of) }},
	}
	if strings.HasPrefix(ns.training, peersImage) {
		again := func(dir string) error { return ns.rsyncToAll(ctx, dir, of) }
		ways = append(ways, &way{name: "rsync over kubectl exec", whole: again, changed: again})
	}
	for i := 0; b.Loop(); i++ {
		dir := filepath.Join(ns.work, "tree-"+strconv.Itoa(i))
		check(b, writeTree(dir, uint64(time.Now().UnixNano())))
		// Each round starts with a different way, because the disk is still busy with the files of the previous way.
		// Nothing is deleted until the end, because ext4 creates files slowly right after deleting others.
		turns := slices.Concat(ways[i%len(ways):], ways[:i%len(ways)])
		for _, w := range turns {
			check(b, timed(&w.all, func() error { return w.whole(dir) }))
		}
		for _, w := range turns {
			check(b, os.WriteFile(filepath.Join(dir, changedFile), []byte("changed for "+w.name), 0o644))
			check(b, timed(&w.one, func() error { return w.changed(dir) }))
		}
	}
	rows := [][]string{{"seconds, " + report.When(), fmt.Sprintf("%d MB in %d files", treeBytes/1_000_000, treeFiles), "one changed file"}}
	for _, w := range ways {
		rows = append(rows, []string{w.name, compared(w.all, ways[0].all), compared(w.one, ways[0].one)})
	}
	printTable(b, "sync", rows)
	for _, name := range environments {
		check(b, ns.teardown(ctx, name))
	}
}

// way is a way to copy a tree, and to copy it again after a change of one file.
type way struct {
	name           string
	whole, changed func(dir string) error
	all, one       []float64
}

const changedFile = "package-3/module-33.py"

// writeTree writes source-like text: it compresses as text does, and no two files are equal.
func writeTree(dir string, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 1))
	words := strings.Fields("def return self import torch tensor for in range if else None True False model loss batch size rank step = + ( " +
		") [ ] : , . config data")
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

// toAll runs a program for the pods of all nodes in parallel.
func (ns *namespace) toAll(ctx context.Context, to []node, program func(ctx context.Context, pod string) *exec.Cmd) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range to {
		group.Go(func() error {
			cmd := program(ctx, n.pod())
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", cmd, err, out)
			}
			return nil
		})
	}
	return group.Wait()
}

func (ns *namespace) copyToAll(ctx context.Context, dir, file string, to []node) error {
	return ns.toAll(ctx, to, func(ctx context.Context, pod string) *exec.Cmd {
		return exec.CommandContext(ctx, kubectlProgram, ns.kubectlArgs("cp", filepath.Join(dir, file), ns.name+"/"+pod+":"+
			filepath.Join("/workspace/cp-"+filepath.Base(dir), file))...)
	})
}

// tarToAll copies a part of the folder dir by tar.
func (ns *namespace) tarToAll(ctx context.Context, dir, part string, to []node) error {
	unpack := fmt.Sprintf("mkdir -p /workspace/tar/%[1]s && tar -C /workspace/tar/%[1]s -xf -", filepath.Base(dir))
	return ns.toAll(ctx, to, func(ctx context.Context, pod string) *exec.Cmd {
		const pipe = `set -o pipefail; tar -C "$1" -cf - "$2" | "${@:3}"`
		return exec.CommandContext(ctx, "bash", append([]string{"-c", pipe, "bash", dir, part, kubectlProgram},
			ns.kubectlArgs("exec", "-i", pod, "--", "sh", "-c", unpack)...)...)
	})
}

// rsyncToAll runs rsync with the flags of oc rsync (openshift/oc:pkg/cli/rsync).
func (ns *namespace) rsyncToAll(ctx context.Context, dir string, to []node) error {
	rsh := fmt.Sprintf(`sh -c 'exec %s %s -- "$@"'`, kubectlProgram, strings.Join(ns.kubectlArgs("exec", "-i", "$0"), " "))
	return ns.toAll(ctx, to, func(ctx context.Context, pod string) *exec.Cmd {
		return exec.CommandContext(ctx, "rsync", "--archive", "--no-owner", "--no-group", "--omit-dir-times", "--numeric-ids", "--blocking-io",
			"--rsh="+rsh, dir+"/", pod+":/workspace/rsync-"+filepath.Base(dir))
	})
}
