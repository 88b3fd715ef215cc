// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"regexp"
	"sync"

	"github.com/spf13/cobra"
)

const logFormatFlag = "log-format"

// AddLogFormat adds the flag for Log to the command and its subcommands.
func AddLogFormat(cmd *cobra.Command) {
	cmd.PersistentFlags().Var(&OutputFlag{format: Text, allowed: []Format{Text, JSON}}, logFormatFlag,
		"format of the log: text, or json for programs")
}

// Log writes to the command's standard output. A message is a whole sentence;
// attributes are the facts in it for programs, and are shown in JSON only, as are messages of level debug,
// which would be true of every run and of use in few.
//
// Attributes have the same names as in the JSON of receipts: camel case, with the unit in the name.
//   - objects: namespace, environment, run, task, job, pod, container, node (its number), kubernetesNode,
//     rank, gpu, claim, lease, service, build, image, tree, commit
//   - amounts: seconds, bytes, bytesPerSecond, nodes, ranks, ranksPerNode, gpusPerNode, pods
//   - why: reason (one of docs/reference/reasons.md), why (a sentence), error
func Log(cmd *cobra.Command) *slog.Logger { return newLog(cmd.OutOrStdout(), IsJSON(cmd)) }

func newLog(out io.Writer, json bool) *slog.Logger {
	if json {
		return slog.New(slog.NewJSONHandler(liveJSON(out), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return TextLog(out)
}

// TextLog writes messages without attributes, one per line. It is the only writer for logs: a text of others in a message
// neither steers a terminal nor forges a line, because all lines of a message but the first are indented.
func TextLog(out io.Writer) *slog.Logger {
	return slog.New(&textHandler{out: DroppingWriter(out)})
}

type textHandler struct {
	mu  sync.Mutex
	out io.Writer
}

func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h *textHandler) Handle(_ context.Context, record slog.Record) error {
	var line bytes.Buffer
	if record.Level == slog.LevelWarn {
		line.WriteString("warning: ")
	}
	line.WriteString(moreLines.ReplaceAllString(ForTerminal(record.Message), "\n  "))
	line.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(line.Bytes())
	return err
}

// moreLines matches the begin of a message's further lines that are not indented.
var moreLines = regexp.MustCompile(`\n {0,2}`)

func (h *textHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *textHandler) WithGroup(string) slog.Handler      { return h }

// Output returns the writer for output that is not a log, such as a build or a training prints. It is nil if the log is JSON, which
// then contains this output too.
func Output(cmd *cobra.Command) io.Writer {
	if IsJSON(cmd) {
		return nil
	}
	return DroppingWriter(cmd.OutOrStdout())
}

// ReportOutput is for a report: Output, unless --output chooses a document.
func ReportOutput(cmd *cobra.Command, output OutputFlag) io.Writer {
	if !output.ForPeople() {
		return cmd.OutOrStdout()
	}
	return Output(cmd)
}

// IsJSON reports whether the log is JSON.
func IsJSON(cmd *cobra.Command) bool {
	f := cmd.Flag(logFormatFlag)
	return f != nil && f.Value.String() == string(JSON)
}
