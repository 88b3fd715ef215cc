// Package pyerror finds the uncaught error in what a Python program printed.
package pyerror

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

var (
	// frame is one level of a traceback (CPython, traceback.py).
	frame = regexp.MustCompile(`^  File "([^"]+)", line (\d+)(?:, in .*)?$`)
	// end is a traceback's last line: a class, dotted or not, and the message. Notes follow it indented.
	end = regexp.MustCompile(`^([A-Za-z_](?:[\w.]|<locals>)*)(?:: (.*))?$`)
	// bar is before the lines of an exception group.
	bar = regexp.MustCompile(`^ +[|+] ?`)
	// chained is between the two tracebacks of an exception that was raised while another one was handled.
	chained = regexp.MustCompile(`(The above exception was the direct cause of the following exception:|During handling of the above exception, another exception occurred:)$`)
	// rankPrefix is the prefix of a rank's lines by torchrun and some programs.
	rankPrefix = regexp.MustCompile(`^\[(?:rank|default)?\d+\]:?\s?`)
)

const (
	longestLine = 500
	longest     = 40
)

// Lines splits output into lines, removes what progress bars overwrote, and shortens long lines.
func Lines(output []byte) []string {
	text := strings.TrimRight(strings.ToValidUTF8(string(output), "\uFFFD"), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		line = line[strings.LastIndexByte(line, '\r')+1:]
		if len(line) > longestLine {
			line = strings.ToValidUTF8(line[:longestLine], "") + "…"
		}
		lines[i] = line
	}
	return lines
}

const title = "Traceback (most recent call last):"

// Last returns the last traceback, nil for none. File and Line are those of the innermost frame outside of the Python
// installation, else of the innermost one.
func Last(lines []string) *agent.PythonError {
	start := last(lines, isTitle)
	if start < 0 {
		return syntaxError(lines)
	}
	result := read(lines[start:])
	if result == nil {
		return nil
	}
	// An empty line is on both sides of the line between two tracebacks.
	for start >= 2 && chained.MatchString(lines[start-2]) {
		if start = last(lines[:start-2], isTitle); start < 0 {
			break
		}
		if first := read(lines[start:]); first != nil {
			result.First = strings.TrimSuffix(first.Type+": "+first.Message, ": ")
		}
	}
	return result
}

// isTitle is true for the first line of a traceback.
func isTitle(line string) bool { return strings.HasSuffix(line, title) }

// last is the index of the last line that matches, -1 for none.
func last(lines []string, match func(string) bool) int {
	for i, line := range slices.Backward(lines) {
		if match(line) {
			return i
		}
	}
	return -1
}

// read reads the traceback with which the lines begin, nil if its end is missing.
func read(lines []string) *agent.PythonError {
	// torch calls the traceback of a data loader's worker the original one.
	prefix := strings.TrimSuffix(strings.TrimSuffix(lines[0], title), "Original ")
	prefix, group := strings.CutSuffix(prefix, "  + Exception Group ")
	result := &agent.PythonError{}
	installed := true
	for _, line := range lines {
		line = strings.TrimPrefix(line, prefix)
		if prefix == "" {
			line = rankPrefix.ReplaceAllString(line, "")
		}
		if group {
			line = bar.ReplaceAllString(line, "")
		}
		result.Traceback = append(result.Traceback, line)
		if match := frame.FindStringSubmatch(line); match != nil {
			if own := !Installed(match[1]); own || installed {
				result.File = match[1]
				result.Line, _ = strconv.Atoi(match[2])
				installed = !own
			}
			continue
		}
		if match := end.FindStringSubmatch(line); match != nil && len(result.Traceback) > 1 {
			result.Type, result.Message = match[1], match[2]
			break
		}
	}
	if result.Type == "" {
		return nil
	}
	if n := len(result.Traceback); n > longest {
		result.Traceback = append(result.Traceback[:10:10], append([]string{"  ..."}, result.Traceback[n-(longest-11):]...)...)
	}
	return result
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
				return &agent.PythonError{Type: match[1], Message: match[2], File: at[1], Line: line, Traceback: lines[j : i+1]}
			}
		}
	}
	return nil
}

var (
	// dumpFrame is one level of a stack in a dump of faulthandler (CPython, traceback.c); dumpLine are its other lines.
	dumpFrame = regexp.MustCompile(`^  File "([^"]+)", line (\d+) in (.+)$`)
	dumpLine  = regexp.MustCompile(`^(  (\.\.\.|<.*>|File "[^"]+", line \?+ in .*|Binary file .*)|Current thread's C stack trace .*|Extension modules: .*|)$`)
)

// ShortenDump leaves of the dump that faulthandler printed at the end its first line, with the innermost place outside of the Python
// installation in the thread that ended the process. If that runs no Python it is the last thread, the main one.
func ShortenDump(lines []string) []string {
	start := last(lines, func(line string) bool { return strings.HasPrefix(line, "Fatal Python error: ") })
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
