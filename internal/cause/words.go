// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/pyerror"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/known"
)

var (
	// fromTorch matches the types of the errors that torch raises on a rank that lost a peer. Errors of other types are about
	// connections of the training's own, to services or to its processes.
	fromTorch = regexp.MustCompile(`^(RuntimeError|EOFError|torch\.[\w.]+|\w*(Dist\w*Error|ChildFailedError|SignalException))$`)
	// timedOut matches any timeout. One that a library of collectives raises is a wait for others, whatever its other words.
	timedOut    = regexp.MustCompile(`(?i)timed? ?out|watchdog hang`)
	collectives = regexp.MustCompile(`/(torch/distributed|deepspeed/comm)/`)
	// crowded has the size of the world and how many joined it.
	crowded = regexp.MustCompile(`store based barrier.*\(world_size=(\d+), worker_count=(\d+),`)
	// noNetwork matches what a download without a network ends in (the C library, urllib3, curl, huggingface_hub, transformers), and server
	// what it wanted to reach.
	noNetwork = regexp.MustCompile(`(?i)name or service not known|temporary failure in name resolution|failed to resolve|` +
		`max retries exceeded|could not resolve host|network is unreachable|no route to host|couldn't connect to 'https?:|` +
		`cannot find the requested files in the`)
	server = regexp.MustCompile(`host='([^']+)'|(?i:resolve host): ([\w.-]+)|https?://([\w.-]+)`)
)

var (
	// what captures the message of the C++ exception that ended a process, as the C++ runtime prints it. fatal captures the message of
	// glog's last line before a process aborts itself, and broken matches the C library's messages.
	what   = regexp.MustCompile(`^\s*what\(\):\s+(.*)$`)
	broken = regexp.MustCompile(
		`^(double free or corruption.*|(?:free|malloc|realloc|munmap_chunk)\(\): .*|corrupted (?:size|double|unsorted).*|` +
			`\*\*\* (?:stack smashing|buffer overflow|Error in) .*|\S+: \S+:\d+: .* Assertion .* failed\.)$`)
	fatal = regexp.MustCompile(`^\[?F\d*[ :\d.]*(?: \d+)? ?[\w/.-]+\.\w+:\d+\] (.*)$`)
	// group matches the prefixes of a message that name the process group and the rank.
	group = regexp.MustCompile(`^(\[(PG [^\]]*|Rank \d+)\] *)+`)
	// work matches a collective for which NCCL's watchdog waited in vain, stuck the monitor's message about the watchdog.
	work  = regexp.MustCompile(`WorkNCCL\(SeqNum=(\d+), OpType=(\w+),.*?Timeout\(ms\)=\d+\) ran for (\d+) milliseconds`)
	stuck = regexp.MustCompile(`watchdog (got stuck|hang)`)
	// enqueued captures a process group in the watchdog's lines, and the number of the last collective that the rank entered in it.
	enqueued = regexp.MustCompile(`\[PG (?:ID \d+ PG GUID )?([^\s(]+)(?: ?\(([^)]*)\))? Rank \d+\].*[Ll]ast enqueued (?:NCCL )?work: (\d+)`)
	// logged matches what C++ libraries log, such as torch at exit, and empty lines.
	logged = regexp.MustCompile(`^\s*$|^(?:\[rank\d+\]:\s?)?\[[WI]\d{3,4} \S+ [\w.]+:\d+\]`)
	p2p    = regexp.MustCompile(`OpType=(SEND|RECV|COALESCED)\b`)
)

// storeClient begins what the client of torch's store raises, until torch 2.0 as an error of Python's own type.
const storeClient = "The client socket has timed out"

// watchdogThread is before the error with which the watchdog's thread ended, and the whole process with it.
const watchdogThread = "watchdog thread terminated with exception: "

// aborted returns the message of the C++ exception, of the fatal line, or of the C library, that ended a process with these last lines,
// "" for none.
func aborted(tail []string) string {
	for i, line := range slices.Backward(tail) {
		line = pyerror.Unprefixed(line)
		match := ""
		for _, words := range []*regexp.Regexp{what, fatal, broken} {
			match = cmp.Or(match, firstGroup(words.FindStringSubmatch(line)))
		}
		if match == "" {
			continue
		}
		if _, inner, ok := strings.Cut(match, watchdogThread); ok {
			match = inner
		}
		match = group.ReplaceAllString(match, "")
		if words := pyerror.NCCLWords(tail[i+1:]); words != "" {
			match += "; " + words
		}
		return match
	}
	return ""
}

// notFound is the exit code of a shell that does not find a program.
const notFound = 127

// gaveUp matches the line with which a program gave up, by its exit code: that of an argument parser (argparse, click) and of a shell.
var gaveUp = map[int]*regexp.Regexp{
	2:        regexp.MustCompile(`^(?:\S+ ?){1,4}: error: .+|^Error: .+`),
	notFound: regexp.MustCompile(`^\S.*: (?:command )?not found$`),
}

// launcherEnd matches the line of DeepSpeed's launcher about the end of one of its processes (launcher/launch.py). It exits with the same
// code, of which the system keeps the last byte.
var launcherEnd = regexp.MustCompile(`exits with return code = -?\d+$`)

// lastLineOf returns the line with which the program of a rank gave up, "" for none.
func lastLineOf(rank agent.RankStatus) string {
	return cmp.Or(lastMatch(rank, gaveUp[rank.Exit.Code]), lastMatch(rank, launcherEnd))
}

// lastMatch returns the last line that matches, of a rank that exited; "" for none.
func lastMatch(rank agent.RankStatus, pattern *regexp.Regexp) string {
	for _, line := range slices.Backward(rank.Tail) {
		if pattern != nil && rank.Exit.Signal == "" && pattern.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// lastLine returns the last line of a rank that shows no error, or that may have handled its error and given up later. The line follows a
// semicolon; "" for none. What libraries log, or a rank prints before another process kills it, is no cause.
func (c Cause) lastLine() string {
	const most = 300
	rank, lines := c.Rank, c.Rank.Tail
	switch said := describe(rank); {
	case !c.Known || rank.Stopped || rank.TailFile != "" || rank.Exit.Signal == "SIGKILL":
		return ""
	case said == "":
	case !endedByError(rank) || !rank.Python.Handled:
		return ""
	default:
		p := rank.Python
		lines = lines[1+pyerror.LastIndex(lines, func(line string) bool {
			return strings.Contains(line, p.Type) || strings.HasPrefix(line, " ") || slices.Contains(p.Traceback, line)
		}):]
	}
	if i := pyerror.LastIndex(lines, func(line string) bool { return !logged.MatchString(line) }); i >= 0 {
		return "; its last line: " + humanize.OneLine(pyerror.Unprefixed(lines[i]), most)
	}
	return ""
}

// firstGroup returns the first group of a match, "" for none.
func firstGroup(match []string) string {
	if match == nil {
		return ""
	}
	return match[1]
}

// endedByError reports whether the Python error ended the rank. A rank that printed other lines since then had handled it, unless it
// exited as an uncaught error does: the lines belong to its message.
func endedByError(rank agent.RankStatus) bool {
	p := rank.Python
	if p == nil || p.Handled && lastMatch(rank, gaveUp[rank.Exit.Code]) != "" {
		return false
	}
	return rank.Exit.Code == 1 && !rank.Stopped || len(rank.Tail) == 0 ||
		slices.ContainsFunc(rank.Tail, func(line string) bool { return strings.Contains(line, p.Type) })
}

func errorText(p *agent.PythonError) string { return strings.TrimSuffix(p.Type+": "+p.Message, ": ") }

// unreachable returns the server that a rank's download could not reach, "" for none: where ranks meet is no URL.
func unreachable(rank agent.RankStatus, words string) string {
	if p := rank.Python; p != nil {
		words += "\n" + p.First
		if fromTorch.MatchString(p.Type) {
			return ""
		}
	}
	if !noNetwork.MatchString(words) {
		return ""
	}
	for _, text := range append([]string{words}, rank.Tail...) {
		match := server.FindStringSubmatch(text)
		// urllib's error has no URL, and the line before may: torchvision's, for example.
		if match != nil && (noNetwork.MatchString(text) || strings.HasPrefix(text, "Downloading ")) {
			return cmp.Or(match[1:]...)
		}
	}
	return ""
}

// lastWords returns the error that ended a rank, of Python or of C++, or else its last lines.
func lastWords(rank agent.RankStatus) string {
	abort := aborted(rank.Tail)
	switch {
	case endedByError(rank) && !counts(abort, rank.Python):
		return errorText(rank.Python)
	case abort != "":
		return abort
	}
	const words = 8
	return strings.Join(rank.Tail[max(0, len(rank.Tail)-words):], "\n")
}

// counts reports whether an abort counts more than the error of Python of its rank: if that is a launcher's about the end of a process,
// or if it came of a lost peer, because NCCL loses its peers after an error in its own thread, or of the collective that the abort names.
func counts(abort string, p *agent.PythonError) bool {
	return abort != "" && (pyerror.OfParent(p) ||
		(originOfAbort(abort) == own || work.MatchString(abort)) && originOfError(p.Type, errorText(p)) != own)
}

// origin is where a rank's failure comes from.
type origin int

const (
	// consequence of another rank's end, or of the agent's signal.
	consequence origin = iota
	// doubtful is an error of the rank's own next to a lost connection: either may have come of the other.
	doubtful
	own
)

// originOf judges a failed rank by its last words. The error with which a chain of exceptions began counts more than the last
// one: trainings wrap a lost peer in an error of their own, and lose their peers while they clean up after one.
func originOf(rank agent.RankStatus) origin {
	if rank.Exit.OutOfMemory || rank.Exit.Error != "" {
		return own
	}
	p, abort := rank.Python, aborted(rank.Tail)
	if endedByError(rank) && counts(abort, p) {
		return originOfAbort(abort)
	}
	if abort != "" && originOfAbort(abort) == own && rank.Exit.Signal != "SIGTERM" && rank.Exit.Signal != "SIGKILL" {
		return own
	}
	if !endedByError(rank) {
		if rank.Stopped {
			return consequence
		}
		return originOfError("RuntimeError", lastWords(rank))
	}
	if rank.Stopped && (p.Type == "KeyboardInterrupt" || p.Type == "SystemExit") {
		return consequence
	}
	last := originOfError(p.Type, errorText(p))
	if last == own && rank.Stopped && p.Handled {
		return doubtful
	}
	if last == own && waitsInLibrary(p) {
		return consequence
	}
	if p.First == "" {
		return last
	}
	kind, _, _ := strings.Cut(p.First, ": ")
	first := originOfError(kind, p.First)
	if first == consequence {
		return consequence
	}
	return max(doubtful, min(first, last))
}

// blamed returns the ranks that the errors of most ranks name: those that differ from them or, with waits, those that did not come.
func blamed(failed []agent.RankStatus, waits bool) (ranks []int) {
	count := map[int]int{}
	for _, rank := range failed {
		if names, waited := known.Words().Names(lastWords(rank)); waited == waits {
			for _, n := range numbers(names) {
				count[n]++
			}
		}
	}
	for n, times := range count {
		if times == slices.Max(slices.Collect(maps.Values(count))) {
			ranks = append(ranks, n)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// numbers reads a list such as "1, 3".
func numbers(list string) (all []int) {
	for text := range strings.SplitSeq(list, ", ") {
		if n, err := strconv.Atoi(text); err == nil {
			all = append(all, n)
		}
	}
	return all
}

func originOfError(kind, text string) origin {
	row, ok := known.Words().Find(text)
	switch {
	case !ok || row.Whose != known.Peer || tooMany(text) != "":
		return own
	case fromTorch.MatchString(kind), strings.Contains(text, storeClient):
		return consequence
	}
	return doubtful
}

// waitTimedOut reports whether a rank's words, or the error that began them, are about a wait for others that timed out.
func waitTimedOut(rank agent.RankStatus) bool {
	words := lastWords(rank)
	if endedByError(rank) {
		words += "\n" + rank.Python.First
	}
	return known.Words().ShowsWaiting(words) || timedOut.MatchString(words)
}

// waitsInLibrary reports whether a library of collectives raised an error about a timeout that no row knows.
func waitsInLibrary(p *agent.PythonError) bool {
	if _, is := known.Words().Find(errorText(p)); is || !fromTorch.MatchString(p.Type) || !timedOut.MatchString(errorText(p)) {
		return false
	}
	return collectives.MatchString(raisedIn(p))
}

// raisedIn returns the traceback's line about the frame that raised an error, "" without a traceback.
func raisedIn(p *agent.PythonError) string {
	for _, line := range slices.Backward(p.Traceback) {
		if strings.HasPrefix(strings.TrimSpace(line), "File ") {
			return line
		}
	}
	return ""
}

// tooMany says that more processes met than the training has ranks, "" if they did not.
func tooMany(text string) string {
	match := crowded.FindStringSubmatch(text)
	if match == nil {
		return ""
	}
	world, _ := strconv.Atoi(match[1])
	if joined, _ := strconv.Atoi(match[2]); joined > world {
		return fmt.Sprintf("%d processes joined a world of %d: the script starts processes by itself, or the port is that of another run",
			joined, world)
	}
	return ""
}

// originOfAbort returns the origin of an error of C++, which has no types of the training's own.
func originOfAbort(text string) origin { return originOfError("RuntimeError", text) }

// describe returns the error that ended a rank, after a colon, with its place in the code; "" if nothing shows one.
func describe(rank agent.RankStatus) string {
	words, p := lastWords(rank), rank.Python
	if !endedByError(rank) || words != errorText(p) {
		if words = cmp.Or(aborted(rank.Tail), lastLineOf(rank)); words == "" {
			return ""
		}
		return ": " + plainly(words)
	}
	if work.MatchString(words) {
		words = plainly(words)
	}
	const begin, end = 360, 140 // what went wrong is at either end of a long message
	if len(words) > begin+end {
		words = strings.ToValidUTF8(words[:begin]+" ... "+words[len(words)-end:], "")
	}
	if p.File != "" {
		words += fmt.Sprintf(" (%s:%d)", p.File, p.Line)
	}
	switch p.InTree {
	case "":
	case ".":
		words += "; the repository's top folder has that module, and Python looks in the script's folder"
	default:
		words += fmt.Sprintf("; the repository has that module in %s, where Python does not look", p.InTree)
	}
	if p.First != "" {
		words += ", which began with " + p.First
	}
	return ": " + words
}

// plainly returns the message of an abort in plain words if it is the watchdog's or its monitor's.
func plainly(words string) string {
	if match := work.FindStringSubmatch(words); match != nil {
		milliseconds, _ := strconv.Atoi(match[3])
		took := time.Duration(milliseconds) * time.Millisecond
		return fmt.Sprintf("NCCL's watchdog ended its wait in collective %s (%s) after %s", match[1], match[2], took.Round(time.Second))
	}
	if stuck.MatchString(words) {
		return "NCCL's monitor ended it, because the watchdog made no progress"
	}
	const most = 300
	return humanize.OneLine(words, most)
}
