// Package pyerror finds the uncaught error in what a Python program printed.
package pyerror

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

var (
	// frame is one level of a traceback (CPython, traceback.py).
	frame = regexp.MustCompile(`^  File "([^"]+)", line (\d+)(?:, in .*)?$`)
	// end is a traceback's last line: a class, dotted or not, and the message. Group errors
	// and notes follow it indented or with a bar.
	end = regexp.MustCompile(`^([A-Za-z_][\w.]*)(?:: (.*))?$`)
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

// Last returns the last traceback, nil for none. File and Line are those of the innermost frame outside of the Python
// installation, else of the innermost one.
func Last(lines []string) *agent.PythonError {
	start := -1
	for i, line := range lines {
		if strings.HasSuffix(line, "Traceback (most recent call last):") {
			start = i
		}
	}
	if start < 0 {
		return syntaxError(lines)
	}
	prefix := strings.TrimSuffix(lines[start], "Traceback (most recent call last):")
	result := &agent.PythonError{}
	installed := true
	for _, line := range lines[start:] {
		line = strings.TrimPrefix(line, prefix)
		if prefix == "" {
			line = rankPrefix.ReplaceAllString(line, "")
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
	for i := len(lines) - 1; i >= 0; i-- {
		match := end.FindStringSubmatch(lines[i])
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

// Installed reports whether a file belongs to the Python installation or to a package.
func Installed(path string) bool {
	return strings.Contains(path, "/site-packages/") || strings.Contains(path, "/dist-packages/") ||
		strings.Contains(path, "/lib/python3") || strings.HasPrefix(path, "<")
}
