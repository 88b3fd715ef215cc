// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"regexp"
	"strings"
)

type message struct {
	host        string
	pid, thread int
	warning     bool
	// file is the source file that printed a warning.
	file, text string
	// cut is true if the end of the text may be missing.
	cut bool
}

// header begins a message (debug.cc): "host:pid:thread [device] NCCL INFO ". Warnings have "file:line" after the device, since 2.30
// the function's name too. Text before it, such as a timestamp, is not part of it. Before CUDA is initialised the device is any number.
var header = regexp.MustCompile(`([\w.-]+):(\d+):(\d+) \[-?\d+\] (?:(\S+):\d+ (?:\([^)]*\) )?)?NCCL (INFO|WARN|TRACE|CALL) ?`)

// foreign begins a line of another library in the middle of one of NCCL's: UCX (src/ucs/debug/log.c),
// "[1763999884.123456] [node-0:101  :0]";
// Open MPI, "[node-0:00101] " and "[node-0][[4711,1],0]"; libfabric (src/log.c), "libfabric:101:1763999884::efa:"; torch, "[rank0]:".
var foreign = regexp.MustCompile(`\[\d{9,}\.\d+\] \[|\[[\w.-]+:\d{3,}\] |\[[\w.-]+\]\[\[\d+,\d+\],\d+\]|libfabric:\d+:|\[rank\d+\]:`)

// messages returns NCCL's messages in a line, if any. A message that ends in the middle of the line because the next
// begins, as when processes share a pipe, counts as cut.
func messages(line string, cut bool) []message {
	found := header.FindAllStringSubmatchIndex(line, -1)
	var result []message
	for i, at := range found {
		m := message{host: line[at[2]:at[3]], warning: line[at[10]:at[11]] == "WARN", cut: cut}
		if at[8] >= 0 {
			m.file = line[at[8]:at[9]]
		}
		m.pid, m.thread = number(line[at[4]:at[5]]), number(line[at[6]:at[7]])
		end := len(line)
		if i+1 < len(found) {
			end, m.cut = found[i+1][0], true
		}
		if other := foreign.FindStringIndex(line[at[1]:end]); other != nil {
			end, m.cut = at[1]+other[0], true
		}
		m.text = strings.TrimRight(line[at[1]:end], " ")
		result = append(result, m)
	}
	return result
}
