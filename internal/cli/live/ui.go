// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/chart"
	"github.com/ml-dev-env/ml-dev-env/internal/cli/envflags"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/report"
)

// UICommand returns the command mlenv ui.
func UICommand() *cobra.Command {
	env := envflags.Flags{Reads: true, Runs: true}
	cmd := &cobra.Command{
		Use:   "ui [RUN|ENVIRONMENT]",
		Short: "Show the training of an environment in the browser, live",
		Long: `Serve a page about a run or an environment, with the training's progress and curves, the verdict of the fabric check, the
state and log of each rank, and the use of GPUs and memory of each node. mlenv prints the page's address and serves it
until Ctrl-C. The page is only on this machine, and only for those who have the address: it contains a random token.
Without an argument it shows the newest local run in progress, or else the environment that you hold, or else ml-dev-env, or
else the only environment of the namespace.

Exit code 0: ended by Ctrl-C; 1: there is no such environment; 2: wrong usage.`,
		Example: "  mlenv ui\n  mlenv ui train-multi-node-x7k2p\n  mlenv ui h-kim -n my-namespace",
		Args: func(cmd *cobra.Command, args []string) error {
			return envflags.ParseName(cmd.Flags(), args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := openSource(cmd, &env)
			if err != nil {
				return err
			}
			defer s.nodes.Close()
			return serve(cmd.Context(), cmd.OutOrStdout(), Page{Environment: s.environment, State: s.current, Log: s.log})
		},
	}
	env.AddTo(cmd.Flags(), envflags.OnlyNamespace)
	return cmd
}

// log reads the log of a rank to its end.
func (s *source) log(ctx context.Context, job string, node, rank int) (io.ReadCloser, error) {
	if node < 0 || node >= len(s.nodes) {
		return nil, fmt.Errorf("node %d: want 0 to %d", node, len(s.nodes)-1)
	}
	return s.nodes[node].Log(ctx, job, agent.RankLog+strconv.Itoa(rank), 0, true)
}

// serve serves the page on loopback until ctx ends.
func serve(ctx context.Context, out io.Writer, page Page) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serving the page: %w", err)
	}
	token := rand.Text()
	server := &http.Server{
		Handler: page.Handler(listener.Addr().String(), token), ReadHeaderTimeout: 10 * time.Second,
		// Ctrl-C ends logs that are followed.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Fprintf(out, "http://%s/%s/ shows environment %s until Ctrl-C.\n", listener.Addr(), token, page.Environment)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the page: %w", err)
	}
	return nil
}

// Page is a page about an environment.
type Page struct {
	Environment string
	State       func(context.Context) (State, error)
	// Log reads the log of a rank, also what is written later.
	Log func(ctx context.Context, job string, node, rank int) (io.ReadCloser, error)
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"curves": report.Curves, "cells": cells}).Parse(pageText))

type cell struct{ Name, Value string }

func cells(n Node) (cells []cell) {
	for i, value := range append([]string{strconv.Itoa(n.Node)}, n.columns()...) {
		cells = append(cells, cell{columns()[i], value})
	}
	return cells
}

// Handler serves the page at /TOKEN/ of an address, which must be the request's host: a foreign page may have another name for this
// machine's loopback.
func (p Page) Handler(address, token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{token}/{$}", p.page)
	mux.HandleFunc("GET /{token}/state", p.state())
	mux.HandleFunc("GET /{token}/log/{job}/{node}/{rank}", p.log)
	guarded := http.NewServeMux()
	guarded.HandleFunc("/{token}/", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != address || subtle.ConstantTimeCompare([]byte(r.PathValue("token")), []byte(token)) != 1 {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
	return guarded
}

func (p Page) page(w http.ResponseWriter, _ *http.Request) {
	nonce := rand.Text()
	w.Header().Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'nonce-"+nonce+
		"'; frame-ancestors 'none'")
	write(w, "page", map[string]any{"Environment": p.Environment, "Nonce": nonce, "ChartCSS": template.CSS(chart.CSS)})
}

// state serves the changing part of the page. Several tabs ask the nodes one after the other.
func (p Page) state() http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		state, err := p.State(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		write(w, "state", state)
	}
}

func write(w http.ResponseWriter, name string, data any) {
	var text bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&text, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = text.WriteTo(w) // an error means that the browser is gone
}

func (p Page) log(w http.ResponseWriter, r *http.Request) {
	node, err := strconv.Atoi(r.PathValue("node"))
	rank, rankErr := strconv.Atoi(r.PathValue("rank"))
	if err = errors.Join(err, rankErr); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	log, err := p.Log(r.Context(), r.PathValue("job"), node, rank)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	control := http.NewResponseController(w)
	for buffer := make([]byte, 32<<10); ; {
		n, err := log.Read(buffer)
		if _, gone := w.Write(buffer[:n]); err != nil || gone != nil {
			return
		}
		_ = control.Flush()
	}
}
