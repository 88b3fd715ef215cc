// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/cli"
)

// block is one piece of code of a page. An HTML comment before it can define how it is tested:
//
//	<!-- docs: skip: REASON -->      it is not run
//	<!-- docs: skip all: REASON -->  this block and all later ones without a comment are not run
//	<!-- docs: output -->            it is what the commands before it print
//	<!-- docs: offline -->           its commands need no cluster, so TestPages runs them
//	<!-- docs: local -->             its commands need torch, so the scenario local runs them
//	<!-- docs: exit 1 -->            its last command ends with this exit code; also "offline, exit 1"
//
// A block without a comment has commands. If lines of the block begin with "$ ", these lines are the commands, and the
// other lines are their output. Blocks of Python and JSON have fences that name the language.
type block struct {
	page     string
	line     int
	language string
	text     []string
	// skipped is the reason why the block is not run.
	skipped                string
	output, offline, local bool
	exit                   int
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// ranOnCluster reports whether the block has commands for the session on the cluster.
func (b block) ranOnCluster() bool {
	return b.skipped == "" && !b.output && !b.offline && !b.local && b.language == ""
}

var comment = regexp.MustCompile(`^<!-- docs: (.*) -->$`)

// blocksOf returns the blocks of a page.
func blocksOf(page, text string) (blocks []block, err error) {
	lines := strings.Split(text, "\n")
	var marks, skipAll string
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if found := comment.FindStringSubmatch(line); found != nil {
			marks = found[1]
			continue
		}
		b := block{page: page, line: i + 1}
		switch {
		case strings.HasPrefix(line, "```"):
			b.language = strings.TrimPrefix(line, "```")
			for i++; i < len(lines) && lines[i] != "```"; i++ {
				b.text = append(b.text, lines[i])
			}
		case strings.HasPrefix(line, "    "):
			b.text, i = indented(lines, i)
		case strings.TrimSpace(line) == "" || marks == "":
			continue
		default:
			return nil, fmt.Errorf("%s:%d: no code follows the comment %q", page, i+1, marks)
		}
		reason, all := strings.CutPrefix(marks, "skip all: ")
		if all {
			skipAll = reason
		}
		if marks == "" {
			b.skipped = skipAll
		} else if err := b.mark(marks); err != nil {
			return nil, err
		}
		marks = ""
		if b.language != "mermaid" {
			blocks = append(blocks, b)
		}
	}
	return blocks, nil
}

// indented returns the block of indented code that begins at a line, and the number of its last line. Empty lines are part of
// it if more code follows.
func indented(lines []string, from int) (text []string, last int) {
	for at := from; at < len(lines) && (lines[at] == "" || strings.HasPrefix(lines[at], "    ")); at++ {
		text = append(text, strings.TrimPrefix(lines[at], "    "))
		if lines[at] != "" {
			last = at
		}
	}
	return text[:last-from+1], last
}

func (b *block) mark(marks string) error {
	kind, reason, _ := strings.Cut(marks, ": ")
	if kind == "skip" || kind == "skip all" {
		if b.skipped = reason; reason == "" {
			return fmt.Errorf("%s: the comment %q has no reason", b, marks)
		}
		return nil
	}
	for mark := range strings.SplitSeq(marks, ", ") {
		code, isExit := strings.CutPrefix(mark, "exit ")
		n, err := strconv.Atoi(code)
		switch {
		case mark == "output":
			b.output = true
		case mark == "offline":
			b.offline = true
		case mark == "local":
			b.local = true
		case isExit && err == nil:
			b.exit = n
		default:
			return fmt.Errorf("%s: unknown comment %q", b, marks)
		}
	}
	return nil
}

// pageCommand is a command of a block.
type pageCommand struct {
	text string
	exit int
	// output is compared if it is not nil.
	output []string
}

// commands returns the commands of a block. Lines that end with a backslash continue on the next line.
func (b block) commands() (commands []pageCommand) {
	prompt := slices.ContainsFunc(b.text, func(line string) bool { return strings.HasPrefix(line, "$ ") })
	continued := false
	for _, line := range b.text {
		last := len(commands) - 1
		after, prompted := strings.CutPrefix(line, "$ ")
		switch {
		case line == "":
		case continued:
			commands[last].text += "\n" + line
		case !prompt || prompted:
			commands = append(commands, pageCommand{text: after})
		default:
			commands[last].output = append(commands[last].output, line)
		}
		continued = strings.HasSuffix(line, `\`) && (!prompt || prompted || continued)
	}
	if len(commands) > 0 {
		commands[len(commands)-1].exit = b.exit
	}
	return commands
}

// volatile matches text that differs between two runs of the same command. It does not match whole numbers without a
// unit.
var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UID"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|Z)?`), "TIME"},
	{regexp.MustCompile(`\b\d{8}-\d{6}\b`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{7,64}\b`), "HASH"},
	// The end of a name that Kubernetes has generated has neither vowels nor the digits 0, 1 and 3.
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-NAME"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(:\d+)?\b`), "ADDRESS"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(ns|µs|ms|s)\b|\b(\d+h)?\d+[hm](\d+(\.\d+)?s)?\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+(\.\d+)?k? ?([kMGT]i?)?B(/s)?\b`), "SIZE"},
	{regexp.MustCompile(`\b\d+(\.\d+)?[kMG]? (tokens|samples|steps)/s`), "RATE"},
	{regexp.MustCompile(`\b\d+\.\d+\b`), "DECIMAL"},
	{regexp.MustCompile(`\s+`), " "},
}

// gap stands for any lines if it is a whole line, and for any text within a line.
const gap = "..."

func steady(line string) string {
	for _, part := range volatile {
		line = part.pattern.ReplaceAllString(line, part.with)
	}
	return strings.TrimSpace(line)
}

// missing returns the first line of want that got lacks or has in another order, "" for none. It ignores lines of got
// before the first line of want and after the last one.
func missing(want []string, got string) string {
	printed := strings.Split(got, "\n")
	for i := range printed {
		printed[i] = steady(printed[i])
	}
	next := 0
	for group := range groups(want) {
		least := ""
		found := slices.ContainsFunc(indices(next, len(printed)), func(at int) bool {
			for i, line := range group {
				if at+i >= len(printed) || !sameLine(line, printed[at+i]) {
					if least == "" || i > 0 {
						least = line
					}
					return false
				}
			}
			next = at + len(group)
			return true
		})
		if !found {
			return least
		}
	}
	return ""
}

// groups yields the lines between gaps.
func groups(lines []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for start := 0; start < len(lines); {
			end := start
			for end < len(lines) && strings.TrimSpace(lines[end]) != gap {
				end++
			}
			if end > start && !yield(lines[start:end]) {
				return
			}
			start = end + 1
		}
	}
}

func indices(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

func sameLine(want, printed string) bool {
	parts := strings.Split(want, gap)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(steady(parts[i]))
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(printed)
}

// testedPages returns the tested pages. The end-to-end tests run the pages with commands for a cluster.
func testedPages(t *testing.T, root string) map[string][]block {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs", "start", "*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("looking for the first pages: %v, %v", paths, err)
	}
	for _, page := range []string{"README.md", "docs/train/script.md", "docs/train/saving.md", "docs/operate/install.md",
		"docs/operate/rdma.md"} {
		paths = append(paths, filepath.Join(root, page))
	}
	pages := map[string][]block{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := blocksOf(filepath.Base(path), string(text))
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(path)] = blocks
	}
	return pages
}

// sessions are the pages whose commands testTutorials runs on the cluster.
var sessions = []string{"demo.md", "script.md", "saving.md"}

// TestPages runs the blocks that need no cluster. It fails for each block that neither it nor the end-to-end tests run,
// unless the page gives a reason.
func TestPages(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for page, blocks := range testedPages(t, root) {
		t.Run(page, func(t *testing.T) {
			folder := t.TempDir()
			for name, from := range map[string]string{"clusters": filepath.Join(root, "clusters"), ".": filepath.Join("testdata", "project")} {
				if err := os.CopyFS(filepath.Join(folder, name), os.DirFS(from)); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(folder)
			// If oc is installed, mlenv prints the next commands for oc.
			if err := os.WriteFile("oc", []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
			printed := ""
			for _, b := range blocks {
				switch {
				case b.ranOnCluster():
					if !slices.Contains(sessions, page) {
						t.Errorf("%s: no test runs this; mark it with a reason", b)
					}
				case b.skipped != "" || b.local:
				case b.offline:
					printed = runOffline(t, b)
				case b.output:
					if line := missing(b.text, printed); printed != "" && line != "" {
						t.Errorf("%s: %q was not printed:\n%s", b, line, printed)
					}
				case b.language == "json":
					if !json.Valid([]byte(strings.Join(b.text, "\n"))) {
						t.Errorf("%s: not JSON", b)
					}
				case b.language != "python": // TestPythonOfPages
					t.Errorf("%s: language %q: want python, json or none", b, b.language)
				}
				if !b.output && !b.offline {
					printed = ""
				}
			}
		})
	}
}

// runOffline runs commands of mlenv in this process.
func runOffline(t *testing.T, b block) (printed string) {
	t.Helper()
	for _, c := range b.commands() {
		words := strings.Fields(c.text)
		if words[0] != "mlenv" {
			t.Fatalf("%s: %q: want a command of mlenv", b, c.text)
		}
		var out bytes.Buffer
		if code := cli.Main(words[1:], &out, &out); code != c.exit {
			t.Errorf("%s: %s: exit code %d, want %d:\n%s", b, c.text, code, c.exit, out.String())
		}
		if line := missing(c.output, out.String()); line != "" {
			t.Errorf("%s: %s did not print %q:\n%s", b, c.text, line, out.String())
		}
		printed += out.String()
	}
	return printed
}

// TestBlocks tests marks, continued lines, prompts and fences.
func TestBlocks(t *testing.T) {
	blocks, err := blocksOf("p.md", "# P\n\n    a \\\n      b\n    c\n\ntext\n\n<!-- docs: offline, exit 1 -->\n\n    $ d\n    out\n    $ "+
		"e\n\n```json\n{}\n```\n\n"+
		"<!-- docs: skip all: why -->\n\n    f\n\n    f\n\ntext\n\n    g\n\n<!-- docs: output -->\n    h\n")
	if err != nil || len(blocks) != 6 {
		t.Fatalf("got %d blocks, %v: want 6", len(blocks), err)
	}
	if got := blocks[0].commands(); len(got) != 2 || got[0].text != "a \\\n  b" || !blocks[0].ranOnCluster() {
		t.Errorf("first block: %+v", got)
	}
	got := blocks[1].commands()
	if len(got) != 2 || got[0].text != "d" || got[0].output[0] != "out" || got[1].text != "e" || got[1].exit != 1 || !blocks[1].offline {
		t.Errorf("second block: %+v of %+v", got, blocks[1])
	}
	if len(blocks[3].text) != 3 || blocks[2].language != "json" || blocks[3].skipped != "why" || blocks[4].skipped != "why" ||
		!blocks[5].output || blocks[5].skipped != "" {
		t.Errorf("later blocks: %+v", blocks[2:])
	}
	for _, wrong := range []string{"<!-- docs: skip -->\n    a\n", "<!-- docs: later -->\n    a\n", "<!-- docs: output -->\ntext\n"} {
		if _, err := blocksOf("p.md", wrong); err == nil {
			t.Errorf("%q: want an error", wrong)
		}
	}
}

func TestMissing(t *testing.T) {
	const printed = `[provision] Environment ns/env is ready after 2.6 s: 2 nodes, mode tcp.
[train] Launched train.py; job 23dfb28a-a462-4b32-9b49-57457e32c8ad.
[train] [0 0] step 20/150 loss 3.5247 2.7 steps/s
Run train-multi-node-x7k2p succeeded after 2m27s.
`
	for _, tc := range []struct{ name, want, missing string }{
		{"other times, names and decimals", "[provision] Environment ns/env is ready after 11 s: 2 nodes, mode tcp.\n...\n[train] [0 0] step " +
			"20/150 loss 1.5 12.7 steps/s\nRun train-multi-node-bcdfg succeeded after 59.1 s.", ""},
		{"text in a line", "[train] Launched ...; job 00000000-a462-4b32-9b49-57457e32c8ad.", ""},
		{"another number", "[provision] Environment ns/env is ready after 2.6 s: 3 nodes, mode tcp.",
			"[provision] Environment ns/env is ready after 2.6 s: 3 nodes, mode tcp."},
		{"lines between", "[train] Launched train.py; job 23dfb28a-a462-4b32-9b49-57457e32c8ad.\nRun train-multi-node-x7k2p succeeded " +
			"after 2m27s.", "Run train-multi-node-x7k2p succeeded after 2m27s."},
		{"another order", "Run train-multi-node-x7k2p succeeded after 1s.\n...\n[train] [0 0] step 20/150 loss 3.5 2.7 steps/s",
			"[train] [0 0] step 20/150 loss 3.5 2.7 steps/s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := missing(strings.Split(tc.want, "\n"), printed); got != tc.missing {
				t.Errorf("missing %q, want %q", got, tc.missing)
			}
		})
	}
}

// TestPythonOfPages runs the Python of the pages without a cluster, as rank 0 of a run that resumes another run.
func TestPythonOfPages(t *testing.T) {
	root := filepath.Join("..", "..")
	for page, blocks := range testedPages(t, root) {
		for _, b := range blocks {
			if b.language != "python" || b.skipped != "" {
				continue
			}
			program := exec.CommandContext(t.Context(), "python3", "-c", strings.Join(b.text, "\n"))
			program.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "internal", "agent", "pylib"), "MLENV_RUN=two",
				"MLENV_RESUME_FROM=one", "MLENV_METRICS_FILE="+filepath.Join(t.TempDir(), "metrics.jsonl"), "PYTHONDONTWRITEBYTECODE=1")
			if out, err := program.CombinedOutput(); err != nil {
				t.Errorf("%s in %s: %v\n%s", b, page, err, out)
			}
		}
	}
}
