// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package browser opens the project's HTML pages in Debian's Chromium. It fails if Chromium is
// missing; make setup-tests installs it.
package browser

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// start starts a browser and returns its context.
func start(t *testing.T) context.Context {
	t.Helper()
	// A container has no user namespaces for Chromium's sandbox.
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The browser runs until the context of the first run is done.
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("starting Chromium: %v; make setup-tests installs it", err)
	}
	return ctx
}

// tab is an open page, with a record of its requests and console messages.
type tab struct {
	*testing.T
	ctx context.Context
	// mu guards did: the requests for anything other than the page itself, and the messages on the console.
	mu  sync.Mutex
	did []string
}

func (t *tab) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.did = append(t.did, fmt.Sprintf(format, args...))
}

func (t *tab) run(what string, actions ...chromedp.Action) {
	t.Helper()
	const timeForThePageToShowIt = 5 * time.Minute
	ctx, cancel := context.WithTimeout(t.ctx, timeForThePageToShowIt)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func open(t *testing.T, browser context.Context, at string, width int64, scheme string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	opened := &tab{T: t, ctx: ctx}
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("opening a tab: %v", err)
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, at) {
				opened.note("it asks for %s", e.Request.URL)
			}
		case *runtime.EventConsoleAPICalled:
			opened.note("the console says %s", e.Type)
		case *runtime.EventExceptionThrown:
			opened.note("an exception: %s", e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			opened.note("the log says %s", e.Entry.Text)
		case *page.EventJavascriptDialogOpening:
			opened.note("a dialog: %s", e.Message)
		}
	})
	opened.run("opening "+at, network.Enable(), log.Enable(),
		emulation.SetDeviceMetricsOverride(width, 800, 1, width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Navigate(at), chromedp.WaitReady("footer"))
	return opened
}

// look finds text that a reader cannot read well: text that does not fit into the page or its picture, text that is too
// small, and text with too little contrast (WCAG 2, 4.5 to 1).
const look = `(() => {
	const wrong = [], channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
	const rgb = text => text.match(/[\d.]+/g).map(Number);
	const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
		if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
	const page = document.documentElement;
	if (page.scrollWidth > page.clientWidth) wrong.push("the page is " + page.scrollWidth + " wide on " + page.clientWidth);
	let read = 0;
	document.querySelectorAll("details").forEach(d => d.open = true);
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walk.nextNode();) {
		const e = n.parentElement, text = n.data.trim();
		if (!text || e.localName === "title") continue;
		const range = document.createRange(); range.selectNodeContents(n);
		const box = range.getBoundingClientRect(), style = getComputedStyle(e), svg = e.closest("svg");
		if (!box.width || !box.height) { wrong.push("not to be seen: " + text.slice(0, 60)); continue; }
		if (box.left < -1 || box.right > page.clientWidth + 1) wrong.push("out of the page: " + text.slice(0, 60));
		if (svg) { const s = svg.getBoundingClientRect();
			if (box.left < s.left - 1 || box.right > s.right + 1 || box.top < s.top - 1 || box.bottom > s.bottom + 1)
				wrong.push("out of its picture: " + text.slice(0, 60)); }
		const size = parseFloat(style.fontSize) * (svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1);
		if (size < 9) wrong.push(size.toFixed(1) + " pixels: " + text.slice(0, 60));
		const a = light(rgb(svg ? style.fill : style.color)), b = light(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) wrong.push("contrast " + ratio.toFixed(1) + ": " + text.slice(0, 60));
		read += text.length;
	}
	if (page.scrollWidth > page.clientWidth) wrong.push("with all details the page is " + page.scrollWidth + " wide on " + page.clientWidth);
	if (read < 400) wrong.push("only " + read + " letters to read");
	document.querySelectorAll("svg").forEach(s => {
		if (!s.querySelector(":scope > title")?.textContent) wrong.push("a picture without a title"); });
	return wrong;
})()`

// TestReports opens the pages that internal/pipeline/report's own test compares.
func TestReports(t *testing.T) {
	paths, err := filepath.Glob("../../internal/pipeline/report/testdata/*.html")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d pages, %v", len(paths), err)
	}
	browser := start(t)
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int64{375, 1280} {
			for _, scheme := range []string{"light", "dark"} {
				t.Run(fmt.Sprintf("%s/%d/%s", filepath.Base(path), width, scheme), func(t *testing.T) {
					opened := open(t, browser, "file://"+path, width, scheme)
					var wrong []string
					var title, background string
					opened.run("looking", chromedp.Evaluate(look, &wrong), chromedp.Title(&title),
						chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &background))
					for _, complaint := range wrong {
						t.Error(complaint)
					}
					if !strings.Contains(title, ": ") {
						t.Errorf("the title is %q, want run and verdict", title)
					}
					if dark := background != "rgb(255, 255, 255)"; dark != (scheme == "dark") {
						t.Errorf("the background is %s", background)
					}
					opened.still()
				})
			}
		}
		t.Run(filepath.Base(path)+"/printed", func(t *testing.T) {
			opened := open(t, browser, "file://"+path, 1280, "dark")
			var content []byte
			opened.run("printing", chromedp.ActionFunc(func(ctx context.Context) (err error) {
				content, _, err = page.PrintToPDF().WithPreferCSSPageSize(true).Do(ctx)
				return err
			}))
			pages := strings.Count(string(content), "/Type /Page\n")
			if !strings.HasPrefix(string(content), "%PDF-") || pages == 0 {
				t.Errorf("%d bytes with %d pages, want a PDF", len(content), pages)
			}
			opened.still()
		})
	}
}

// still fails if the page has sent a request or a message to the console.
func (t *tab) still() {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, did := range t.did {
		t.Error(did)
	}
}
