// SPDX-License-Identifier: Apache-2.0

// Package notify posts the events of a run, or of an idle environment, to a URL that a Secret holds, such as an incoming webhook of Slack.
package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
	"github.com/ml-dev-env/ml-dev-env/internal/secretdir"
)

// Kind is what happened.
type Kind string

// The kinds.
const (
	// Start: the ranks of the first attempt start.
	Start Kind = "start"
	// Restart: an attempt failed, and another one follows.
	Restart Kind = "restart"
	// Hang: the training hangs, and is stopped.
	Hang Kind = "hang"
	// End: the run has ended, and its receipt is complete.
	End Kind = "end"
	// Regression: a run of a schedule succeeded, and was worse than those before it.
	Regression Kind = "regression"
	// Idle: an environment was not used for long, and is released soon.
	Idle Kind = "idle"
)

// Event is documented in docs/reference/events.md.
type Event struct {
	// Text is the event as text in Slack's syntax. Send writes it.
	Text string    `json:"text"`
	Kind Kind      `json:"event"`
	Time time.Time `json:"time"`
	// Run is "" for a training without a PipelineRun.
	Run         string `json:"run,omitempty"`
	Namespace   string `json:"namespace"`
	Environment string `json:"environment"`
	// Verdict is the receipt's verdict, "" before the end.
	Verdict string      `json:"verdict,omitempty"`
	Reason  fail.Reason `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
	// Attempt counts from 1, and is the failed one in a Restart. It is 0 if nothing was launched.
	Attempt int `json:"attempt,omitempty"`
	// Nodes is 0 if nothing was launched.
	Nodes int `json:"nodes,omitempty"`
	// Seconds is how long the run took, or the attempt that failed, or how long an idle environment was not used.
	Seconds float64 `json:"seconds,omitempty"`
}

// Took returns the value of Seconds, 0 if a time is not known.
func Took(started, ended time.Time) float64 {
	if started.IsZero() || ended.IsZero() {
		return 0
	}
	return ended.Sub(started).Seconds()
}

// maxMessage bounds the message, and maxText what of it is in the text: ranks can print anything.
const (
	maxMessage = 4000
	maxText    = 1000
)

// slackSyntax escapes what Slack reads as a link or a mention, such as <!channel>.
var slackSyntax = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func (e Event) text() string {
	if e.Kind == Idle {
		return slackSyntax.Replace(humanize.OneLine(e.Message, maxText))
	}
	took, why := "", ""
	if e.Seconds > 0 {
		took = " after " + humanize.Seconds(e.Seconds)
	}
	if e.Reason != "" {
		why = ": " + string(e.Reason) + ": " + humanize.OneLine(e.Message, maxText)
	}
	text := "Run " + e.Run
	if e.Run == "" {
		text = "The training on environment " + e.Environment
	}
	text += " in namespace " + e.Namespace
	switch e.Kind {
	case Start:
		text += " trains on " + humanize.Count(e.Nodes, "node") + "."
	case Restart:
		text += fmt.Sprintf(": attempt %d failed%s%s. Attempt %d starts when all nodes answer.", e.Attempt, took, why, e.Attempt+1)
	case Hang:
		text += " hangs" + why
	case End:
		if e.Reason == "" && e.Message != "" {
			why = ", but " + humanize.OneLine(e.Message, maxText)
		}
		text += ": " + e.Verdict + took + why
	case Regression:
		text += ": " + e.Verdict + why
	}
	return slackSyntax.Replace(text)
}

// Flags are the flags of a step that sends events.
type Flags struct{ secretDir, caFile string }

// AddTo adds the flags.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.secretDir, "notify-dir", "", "folder of a mounted Secret whose key url is the address to which the run's events "+
		"are posted")
	flags.StringVar(&f.caFile, "ca-file", "", "certificates to trust for that URL, in addition to the system's")
}

// Open returns a Sender of events about a run, nil without a Secret. A mistake in the Secret is a warning: no run fails by it.
func (f Flags) Open(log *slog.Logger, about Event, uid string) *Sender {
	keys, err := secretdir.Read(f.secretDir)
	if keys == nil && err == nil {
		return nil
	}
	var to *url.URL
	if err == nil {
		to, err = parse(keys["url"])
	}
	if err != nil {
		next := fmt.Sprintf("oc create secret generic %s --from-literal=url=https://...", filepath.Base(f.secretDir))
		log.Warn(fmt.Sprintf("The run posts no events: %v\n  next: %s", err, next))
		return nil
	}
	return &Sender{log: log, about: about, uid: cmp.Or(uid, rand.Text()), to: to, pause: time.Second, client: http.Client{
		Transport: command.Transport(f.caFile), Timeout: 3 * time.Second,
		// The URL is a secret for this host alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// parse reads the URL. No error contains it.
func parse(text string) (*url.URL, error) {
	to, err := url.Parse(strings.TrimSpace(text))
	if err == nil && to.Host != "" {
		host := to.Hostname()
		if to.Scheme == "https" || to.Scheme == "http" && (strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")) {
			return to, nil
		}
	}
	return nil, errors.New("reading the key url of the Secret of param notify: want an https:// URL, or an http:// one of a Service: " +
		"http://NAME.NAMESPACE.svc")
}

// Sender posts events. A nil one sends none.
type Sender struct {
	log     *slog.Logger
	about   Event
	uid     string
	to      *url.URL
	client  http.Client
	pause   time.Duration
	pending sync.WaitGroup
}

// Send posts an event in the background. If it cannot be posted, the log has a warning.
func (s *Sender) Send(e Event) {
	if s == nil {
		return
	}
	e.Time, e.Run, e.Namespace, e.Environment = time.Now().UTC(), s.about.Run, s.about.Namespace, s.about.Environment
	e.Text, e.Message = e.text(), humanize.Lines(e.Message, maxMessage)
	body, err := json.Marshal(e)
	s.pending.Go(func() {
		if err == nil {
			err = s.post(e, body)
		}
		if err != nil {
			why := err.Error()
			if path := s.to.RequestURI(); path != "/" { // an answer that makes no sense may repeat it
				why = strings.ReplaceAll(why, path, "/...")
			}
			s.log.Warn(fmt.Sprintf("The event %s was not sent to %s: %s", e.Kind, s.to.Hostname(), why))
		}
	})
}

const (
	// sendTime bounds the time for an event, with all tries.
	sendTime = 10 * time.Second
	tries    = 3
)

// Wait returns when all events are sent or given up.
func (s *Sender) Wait() {
	if s != nil {
		s.pending.Wait()
	}
}

func (s *Sender) post(e Event, body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), sendTime)
	defer cancel()
	for try := 1; ; try++ {
		again, err := s.try(ctx, e, body)
		if !again || try == tries {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * s.pause):
		case <-ctx.Done():
			return err
		}
	}
}

// try sends the event once. It is a CloudEvent in binary mode, so that the body is what any other receiver wants, too. again
// is true after an error that another try may not have.
func (s *Sender) try(ctx context.Context, e Event, body []byte) (again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.to.String(), bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the URL is invalid")
	}
	source, about := "/namespaces/"+e.Namespace+"/environments/"+e.Environment, project.ReverseDomain+"run"
	if e.Kind == Idle {
		about = project.ReverseDomain + "environment"
	}
	if e.Run != "" {
		source = "/namespaces/" + e.Namespace + "/pipelineruns/" + e.Run
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "ce-specversion": "1.0", "ce-type": about + "." + string(e.Kind),
		"ce-source": source,
		"ce-id":     fmt.Sprintf("%s-%s-%d", s.uid, e.Kind, e.Attempt), "ce-time": e.Time.Format(time.RFC3339Nano),
	} {
		request.Header.Set(name, value)
	}
	response, err := s.client.Do(request)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		return true, wrapped.Err // without the URL
	} else if err != nil {
		return true, err
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 2 {
		return false, nil
	}
	return response.StatusCode/100 == 5 || response.StatusCode == http.StatusTooManyRequests, fmt.Errorf("it answered %d", response.StatusCode)
}
