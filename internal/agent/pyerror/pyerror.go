// SPDX-License-Identifier: Apache-2.0

// Package pyerror finds the uncaught error of a Python program: the one that package pylib's hook recorded, or else, as for a program that
// prints an error and exits, the last traceback in what it printed.
package pyerror

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

var (
	// frame is one level of a traceback (CPython, traceback.py); loguru marks the one where it caught the error by ">".
	frame = regexp.MustCompile(`^[> ] File "([^"]+)", line (\d+)(?:, in .*)?$`)
	// end is a traceback's last line: a class, dotted or not, and the message. Notes follow it indented.
	end = regexp.MustCompile(`^([A-Za-z_](?:[\w.]|<locals>)*)(?:: (.*)|:)?$`)
	// bar is before the lines of an exception group.
	bar = regexp.MustCompile(`^ +[|+] ?`)
	// chained is between the two tracebacks of an exception that was raised while another one was handled.
	chained = regexp.MustCompile(`(The above exception was the direct cause of the following exception:|During handling of the above ` +
		`exception, another exception occurred:)$`)
	// ofProcess is two lines before the traceback of another process, whose error a pool of processes raises again.
	ofProcess = regexp.MustCompile(`(^|\.)_?RemoteTraceback: ?$`)
	// inTable is before a traceback in elastic's table, whose other lines are as far from the margin.
	inTable = regexp.MustCompile(`^(\s+)traceback +: $`)
	// rankPrefix is the prefix of a rank's lines by torchrun and some programs.
	rankPrefix = regexp.MustCompile(`^(?:\[(?:rank|default)?\d+\]:?\s?)+`)
	// escape is a sequence that colours a terminal.
	escape = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)
	// parents match the types of errors about the end of another process, as launchers raise them.
	parents = regexp.MustCompile(`(^|\.)(ChildFailedError|CalledProcessError|ProcessExitedException)$`)
	// secondary is before the traceback of an error that did not end the program: Python printed it and went on to exit. ofThread is
	// before one that ended a thread, lost the types of those that come of a main thread that has ended.
	secondary = regexp.MustCompile(`^(Exception ignored (in|while)\b|Error in atexit\._run_exitfuncs:|future: <(Task|Future) finished )`)
	ofThread  = regexp.MustCompile(`^Exception in thread `)
	lost      = regexp.MustCompile(`^(ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)$`)
	// ofRank is before the traceback of another rank in the message of torch.distributed.checkpoint's error (checkpoint/api.py).
	ofRank = regexp.MustCompile(`^Traceback \(most recent call last\): \(RANK (\d+)\)$`)
	// ncclError is the second line of NCCL's errors in torch: the kind, before NCCL's own last words.
	ncclError = regexp.MustCompile(`^nccl\w+: `)
	// rootCause are the lines of elastic's table about the rank that failed first, and tableRank what the first of them has.
	rootCause = regexp.MustCompile(`^\s+(rank|exitcode|traceback)\s+: (.*)$`)
	tableRank = regexp.MustCompile(`^rank (\d+) \(local_rank: (\d+)\)`)
	// untraced is a fact of the table: the rank ended by a signal or by an exit code that follow no traceback.
	untraced = regexp.MustCompile(`, exitcode (?:-(?:4|7|8|9|11)|[2-9]|\d\d+) `)
)

const (
	// longestLine bounds a line that is judged, shown one that people read, both in bytes; longest bounds a traceback in lines.
	longestLine = 2000
	shown       = 500
	longest     = 40
	// near is how many lines before a launcher's error Last searches for the error of the launcher's process; most is how many
	// tracebacks lastPrimary passes over.
	near = 200
	most = 20
)

// SplitLines splits output into lines, removes what progress bars overwrote, and shortens long lines.
func SplitLines(output []byte) []string {
	text := strings.TrimRight(strings.ToValidUTF8(string(output), "\uFFFD"), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(escape.ReplaceAllString(text, ""), "\n")
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		line = line[strings.LastIndexByte(line, '\r')+1:]
		lines[i] = cut(line, longestLine)
	}
	return lines
}

func shorten(lines []string) (short []string) {
	for _, line := range lines {
		short = append(short, cut(line, shown))
	}
	return short
}

func cut(line string, most int) string {
	if len(line) <= most {
		return line
	}
	return strings.ToValidUTF8(line[:most], "") + "…"
}

const title = "Traceback (most recent call last):"

// LastTraceback returns the last traceback of an error that may have ended the program, nil for none. File and Line name the innermost
// frame outside of the Python installation, else the innermost frame. A launcher's error counts only if no error of its process precedes
// it.
func LastTraceback(lines []string) *agent.PythonError {
	start := lastPrimary(lines)
	if start < 0 {
		return syntaxError(lines)
	}
	result, rest := read(lines[start:])
	if result == nil {
		return nil
	}
	result.Message += continued(result, rest)
	if OfParent(result) && chainedBefore(lines, start) < 0 {
		facts := firstOfTable(lines[start:])
		if own := LastTraceback(ofRoot(lines[max(0, start-near):start], facts)); own != nil && !untraced.MatchString(facts) {
			return own
		}
		result.Message = cmp.Or(result.Message, facts)
	}
	for again, start := true, chainedBefore(lines, start); start >= 0; again, start = false, chainedBefore(lines, start) {
		first, _ := read(lines[start:])
		switch {
		case first == nil:
		case again && first.Type == result.Type && isOfProcess(lines, start):
			result.File, result.Line, result.Traceback = first.File, first.Line, first.Traceback
		default:
			result.First = strings.TrimSuffix(first.Type+": "+first.Message, ": ")
		}
	}
	return result
}

// isOfProcess reports whether the traceback at start, or one that is chained to it, comes from another process.
func isOfProcess(lines []string, start int) bool {
	for at := start; at >= 0; at = chainedBefore(lines, at) {
		start = at
	}
	return start >= 2 && ofProcess.MatchString(Unprefixed(lines[start-2]))
}

// chainedBefore finds the title of the traceback that is chained to the one at start, -1 for none. An empty line is on both sides of the
// line between them, two by loguru.
func chainedBefore(lines []string, start int) int {
	text := func(i int) string { return strings.TrimSpace(Unprefixed(lines[i])) }
	i := start - 1
	for i >= max(0, start-2) && text(i) == "" {
		i--
	}
	const folded = 6
	between := ""
	for ; i >= max(0, start-2-folded) && i < start-1 && text(i) != ""; i-- {
		between = strings.TrimSpace(text(i) + " " + between)
		if chained.MatchString(between) {
			return LastIndex(lines[:i], isTitle)
		}
	}
	return -1
}

// lastPrimary returns the title of the last traceback, but of one that did not end the program only if there is no other; -1 for none.
func lastPrimary(lines []string) int {
	latest := LastIndex(lines, isTitle)
	start := latest
	for range most {
		if start < 0 {
			return latest
		}
		first := start
		for at := start; at >= 0; at = chainedBefore(lines, at) {
			first = at
		}
		if first == 0 {
			return start
		}
		above, ends := Unprefixed(lines[first-1]), false
		switch {
		case secondary.MatchString(above):
		case ofThread.MatchString(above):
			error, _ := read(lines[start:])
			ends = error == nil || !lost.MatchString(error.Type)
		default:
			ends = true
		}
		if ends {
			return start
		}
		start = LastIndex(lines[:first], isTitle)
	}
	return latest
}

// OfParent reports whether a process reports the end of another one by this error, as launchers do.
func OfParent(p *agent.PythonError) bool { return parents.MatchString(p.Type) }

// isTitle reports whether the line is the first of a traceback.
func isTitle(line string) bool {
	return strings.HasSuffix(line, title)
}

// Unprefixed returns a line without the rank before it.
func Unprefixed(line string) string { return rankPrefix.ReplaceAllString(line, "") }

// firstOfTable returns what the table of torch.distributed.elastic has about the rank that failed first, "" without a table.
func firstOfTable(lines []string) string {
	const title = "Root Cause (first observed failure):"
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, title) })
	var facts []string
	for _, line := range lines[i+1:] {
		match := rootCause.FindStringSubmatch(Unprefixed(line))
		if i >= 0 && match != nil && !strings.HasPrefix(match[2], "To enable traceback") {
			facts = append(facts, match[1]+" "+match[2])
		}
	}
	return strings.Join(facts[:min(len(facts), 3)], ", ")
}

// ofRoot returns the lines of the rank that these facts of the table are about. Where a prefix names ranks or local ranks, it leaves out
// those of the others. Where none does, as until torch 2.2, it ends with the first of the tracebacks that follow each other.
func ofRoot(lines []string, facts string) []string {
	root := tableRank.FindStringSubmatch(facts)
	if root == nil {
		return lines
	}
	of := func(line, name, number string) (named, other bool) {
		prefix := rankPrefix.FindString(line)
		named = strings.Contains(prefix, "["+name)
		return named, named && !strings.Contains(prefix, "["+name+number+"]")
	}
	named := false
	own := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		byRank, other := of(line, "rank", root[1])
		byLocal, otherLocal := of(line, "default", root[2])
		named = named || byRank || byLocal
		return other || otherLocal
	})
	for latest := LastIndex(own, isTitle); !named && latest > 0; latest = LastIndex(own, isTitle) {
		earlier := LastIndex(own[:latest], isTitle)
		if earlier < 0 {
			break
		}
		result, rest := read(own[earlier:latest])
		if result == nil || slices.ContainsFunc(rest, func(line string) bool { return strings.TrimSpace(line) != "" }) {
			break
		}
		own = own[:latest]
	}
	return own
}

// LastIndex returns the index of the last line that matches, -1 for none.
func LastIndex(lines []string, match func(string) bool) int {
	for i, line := range slices.Backward(lines) {
		if match(line) {
			return i
		}
	}
	return -1
}

// read reads the traceback with which the lines begin, nil if its end is missing, and returns the lines after its last one.
func read(lines []string) (result *agent.PythonError, rest []string) {
	// torch calls the traceback of a data loader's worker the original one.
	prefix := strings.TrimSuffix(strings.TrimSuffix(lines[0], title), "Original ")
	prefix, group := strings.CutSuffix(prefix, "  + Exception Group ")
	if match := inTable.FindStringSubmatch(prefix); match != nil {
		prefix = match[1]
	}
	result = &agent.PythonError{}
	var frames []Frame
	for i, line := range lines {
		if prefix == "" {
			line = Unprefixed(line)
		}
		line = strings.TrimPrefix(line, prefix)
		if group {
			line = bar.ReplaceAllString(line, "")
		}
		result.Traceback = append(result.Traceback, cut(line, shown))
		if match := frame.FindStringSubmatch(line); match != nil {
			number, _ := strconv.Atoi(match[2])
			frames = append(frames, Frame{match[1], number})
			continue
		}
		if match := end.FindStringSubmatch(line); match != nil && len(result.Traceback) > 1 {
			result.Type, result.Message = match[1], match[2]
			if words := NCCLWords(lines[i+1:]); words != "" {
				result.Message += "; " + words
			}
			rest = lines[i+1:]
			break
		}
	}
	result.File, result.Line = innermost(frames)
	if result.Type == "" {
		return nil, nil
	}
	result.Traceback = bounded(result.Traceback)
	return result, rest
}

// bounded returns the begin and the end of a traceback.
func bounded(lines []string) []string {
	const begin = 10
	if n := len(lines); n > longest {
		return slices.Concat(lines[:begin], []string{"  ..."}, lines[n-(longest-begin-1):])
	}
	return lines
}

// continued returns what the next lines add to the first one of a message: the error of another rank, or what a colon announces.
func continued(p *agent.PythonError, lines []string) string {
	if strings.HasSuffix(p.Type, ".CheckpointException") && len(lines) > 0 {
		if match := ofRank.FindStringSubmatch(Unprefixed(lines[0])); match != nil {
			for _, line := range lines[1:] {
				if line = Unprefixed(line); end.MatchString(line) {
					return ": rank " + match[1] + ": " + line
				}
			}
		}
	}
	if strings.HasSuffix(p.Message, ":") && len(lines) > 0 {
		if next := strings.TrimSpace(Unprefixed(lines[0])); next != "" && !isTitle(next) {
			return " " + next
		}
	}
	return ""
}

// NCCLWords returns the words of NCCL's own in the lines after the first one of torch's error, "" if there are none.
func NCCLWords(lines []string) string {
	at := func(i int) string {
		if i >= len(lines) {
			return ""
		}
		return strings.TrimSpace(Unprefixed(lines[i]))
	}
	if !ncclError.MatchString(at(0)) {
		return ""
	}
	words := at(0)
	if at(1) == "Last error:" && !strings.HasPrefix(at(2), "Exception raised from ") {
		words += " " + at(2)
	}
	return strings.TrimSpace(words)
}

// syntaxError finds the error of a script that Python cannot parse, which has no traceback.
func syntaxError(lines []string) *agent.PythonError {
	for i, line := range slices.Backward(lines) {
		match := end.FindStringSubmatch(line)
		if match == nil || !strings.HasSuffix(match[1], "Error") {
			continue
		}
		for j := i; j >= max(0, i-4); j-- {
			if at := frame.FindStringSubmatch(lines[j]); at != nil {
				line, _ := strconv.Atoi(at[2])
				return &agent.PythonError{Type: match[1], Message: match[2], File: at[1], Line: line, Traceback: shorten(lines[j : i+1])}
			}
		}
	}
	return nil
}

var (
	// dumpFrame is one level of a stack in a dump of faulthandler (CPython, traceback.c); dumpLine are its other lines.
	dumpFrame = regexp.MustCompile(`^  File "([^"]+)", line (\d+) in (.+)$`)
	dumpLine  = regexp.MustCompile(
		`^(  (\.\.\.|<.*>|File "[^"]+", line \?+ in .*|Binary file .*)|Current thread's C stack trace .*|Extension modules: .*|)$`)
)

// noise matches lines that say nothing about a failure: C++ stacks of torch, what a launcher's table has besides the rank, the reports of
// Weights & Biases at the end of a process, and Python's about leaked semaphores.
var noise = regexp.MustCompile(
	`^\s*(frame #\d+: |Exception raised from .* \(most recent call first\):|[=-]{20,}$|(time|host|error_file)\s+: |` +
		`<NO_OTHER_FAILURES>$|wandb: |.*resource_tracker.*leaked|warnings\.warn\(|$)`)

// Shorten cuts long lines and leaves out noise, and of the dump that faulthandler printed at the end all but its first line, with the
// innermost place outside of the Python installation in the thread that ended the process. If that runs no Python it is the last thread,
// the main one.
func Shorten(lines []string) []string {
	lines = slices.DeleteFunc(shorten(lines), func(line string) bool { return noise.MatchString(Unprefixed(line)) })
	start := LastIndex(lines, func(line string) bool { return strings.HasPrefix(line, "Fatal Python error: ") })
	if start < 0 {
		return lines
	}
	short := slices.Clone(lines[:start+1])
	place, own, reading, ended := "", false, false, false
	for _, line := range lines[start+1:] {
		match, current := dumpFrame.FindStringSubmatch(line), strings.HasPrefix(line, "Current thread 0x")
		switch {
		case current || strings.HasPrefix(line, "Thread 0x"):
			if reading = !ended; reading {
				place, own, ended = "", false, current
			}
		case match == nil && dumpLine.MatchString(line):
		case match == nil: // another process of the rank's prints too
			short = append(short, line)
		case reading && !own && (place == "" || !Installed(match[1])):
			place, own = " in "+match[3]+" ("+match[1]+":"+match[2]+")", !Installed(match[1])
		}
	}
	short[start] += place
	return short
}

// Installed reports whether a file belongs to the Python installation or to a package.
func Installed(path string) bool {
	return strings.Contains(path, "/site-packages/") || strings.Contains(path, "/dist-packages/") ||
		strings.Contains(path, "/lib/python3") || strings.HasPrefix(path, "<")
}
