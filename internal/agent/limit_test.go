// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// endless is an answer that begins with one text and then repeats another text.
type endless struct {
	begin, rest string
	read        int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for ; n < len(p); n++ {
		if at := e.read; at < len(e.begin) {
			p[n] = e.begin[at]
		} else {
			p[n] = e.rest[(at-len(e.begin))%len(e.rest)]
		}
		e.read++
	}
	return n, nil
}

func (e *endless) Close() error { return nil }

// RoundTrip makes e the answer of every request.
func (e *endless) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: e, Request: r}, nil
}

func keepAll(tree.Digest) error { return nil }

func TestAnswersAreBounded(t *testing.T) {
	ask := map[string]func(context.Context, *Client) error{
		"health":    func(ctx context.Context, c *Client) error { _, err := c.Health(ctx); return err },
		"facts":     func(ctx context.Context, c *Client) error { _, err := c.Facts(ctx); return err },
		"workspace": func(ctx context.Context, c *Client) error { _, err := c.Workspace(ctx); return err },
		"devices":   func(ctx context.Context, c *Client) error { _, err := c.RDMA(ctx, rdma.Expected{}); return err },
		"names":     func(ctx context.Context, c *Client) error { _, err := c.Resolve(ctx, nil); return err },
		"plan":      func(ctx context.Context, c *Client) error { _, _, err := c.PlanTree(ctx, "", nil, keepAll); return err },
		"tree":      func(ctx context.Context, c *Client) error { _, err := c.CurrentTree(ctx); return err },
		"job":       func(ctx context.Context, c *Client) error { _, err := c.Job(ctx, "job"); return err },
		"watch": func(ctx context.Context, c *Client) error {
			return c.WatchJob(ctx, "job", func(JobStatus) error { return nil })
		},
	}
	largest := map[string]int{"job": maxStatus, "watch": maxStatus, "devices": maxTable, "names": maxTable, "plan": maxToken}
	for name, ask := range ask {
		for form, answer := range map[string]*endless{
			"text":    {begin: `{"missing":["`, rest: "x"},
			"spaces":  {begin: `{`, rest: " "},
			"objects": {begin: `{"gpus":[{}`, rest: ",{}"},
			"lists":   {begin: `{"ranks":`, rest: "["},
		} {
			err := ask(t.Context(), &Client{http: &http.Client{Transport: answer}})
			if fail.ReasonOf(err) != fail.AgentUnreachable {
				t.Errorf("%s, endless %s: %v, want %s", name, form, err, fail.AgentUnreachable)
			}
			want := largest[name]
			if want == 0 {
				want = maxAnswer
			}
			if form == "objects" || form == "lists" {
				want /= 4 // 32 bytes per object, and the buffer of a decoder doubles
			}
			const bytesReadAhead = 4096
			if answer.read > want+bytesReadAhead {
				t.Errorf("%s, endless %s: %d bytes were read, want at most %d", name, form, answer.read, want)
			}
		}
	}
}

// The answers about a long job, all together, exceed the bound of one answer.
func TestWatchedAnswersAreBoundedOneByOne(t *testing.T) {
	line, err := json.Marshal(JobStatus{State: Running, Spec: JobSpec{Nodes: 1, RanksPerNode: 1}, StopReason: strings.Repeat("[", 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	enough := errors.New("enough")
	client := &Client{http: &http.Client{Transport: &endless{rest: string(line) + "\n"}}}
	err = client.WatchJob(t.Context(), "job", func(JobStatus) error {
		if seen++; seen > 2*maxStatus/len(line) {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("after %d answers: %v", seen, err)
	}
}

func TestReadPlan(t *testing.T) {
	for answer, want := range map[string][]string{
		`{"present":false}`:                                      {},
		`{"present":false,"missing":null}`:                       {},
		`{"present":false,"missing":["a","b"],"more":7}`:         {"a", "b"},
		"\n" + `{"missing" : [ "\u0061" ] , "present" : false} `: {"a"},
	} {
		got := []string{}
		present, begun, err := readPlan(strings.NewReader(answer), func(content tree.Digest) error {
			got = append(got, string(content))
			return nil
		})
		if diff := cmp.Diff(want, got); diff != "" || err != nil || present || begun != 0 {
			t.Errorf("%s: present is %t, begun %d, %v (-want +got):\n%s", answer, present, begun, err, diff)
		}
	}
	if present, _, err := readPlan(strings.NewReader(`{"present":true}`), nil); err != nil || !present {
		t.Errorf("a complete tree: present is %t, %v", present, err)
	}
	if _, begun, err := readPlan(strings.NewReader(`{"missing":["a"],"begun":7000000000}`), keepAll); err != nil || begun != 7_000_000_000 {
		t.Errorf("a content that broke off: begun is %d, %v", begun, err)
	}
	for _, answer := range []string{"", "{", `{"missing":["a"]`, "true", `"a"`, "[[[", `{"missing":[[["a"]]]}`, "}", `{"a" "b"}`} {
		if _, _, err := readPlan(strings.NewReader(answer), keepAll); !errors.As(err, new(planError)) || errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, want an error about the answer", answer, err)
		}
	}
	refused := errors.New("not in the tree")
	if _, _, err := readPlan(strings.NewReader(`{"missing":["a"]}`), func(tree.Digest) error { return refused }); !errors.Is(err, refused) ||
		errors.As(err, new(planError)) {
		t.Errorf("a refused content: %v, want that error alone", err)
	}
}

// FuzzReadPlan: no content is longer than the bound of one value, whatever an agent answers.
func FuzzReadPlan(f *testing.F) {
	f.Add([]byte(`{"present":false,"missing":["a","b"],"more":{"x":[1,null,true]}}`))
	f.Add([]byte(`{"missing":[["a"]]}`))
	f.Add([]byte(`{"present":true,"missing":null}{}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		_, _, err := readPlan(bytes.NewReader(answer), func(content tree.Digest) error {
			if len(content) > maxToken {
				t.Errorf("a content of %d bytes", len(content))
			}
			return nil
		})
		if err != nil && !errors.As(err, new(planError)) {
			t.Errorf("%v, want an error about the answer", err)
		}
	})
}
