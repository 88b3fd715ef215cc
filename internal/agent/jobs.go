// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// StartJob starts the node's part of a job. If a job of that id exists, running or ended, it returns its status and starts
// nothing.
func (c *Client) StartJob(ctx context.Context, id string, spec JobSpec) (JobStatus, error) {
	return c.jobStatus(ctx, http.MethodPut, id, spec)
}

// StopJob ends a job: SIGTERM, and SIGKILL after the grace. It does not wait.
func (c *Client) StopJob(ctx context.Context, id string, stop Stop) error {
	return c.send(ctx, http.MethodPost, jobPath(id)+"/stop", stop, nil)
}

// Job returns a job's status. An unknown job is IsNotFound.
func (c *Client) Job(ctx context.Context, id string) (JobStatus, error) {
	return c.jobStatus(ctx, http.MethodGet, id, nil)
}

func jobPath(id string) string { return "/v1/jobs/" + url.PathEscape(id) }

func (c *Client) jobStatus(ctx context.Context, method, id string, in any) (JobStatus, error) {
	s, err := requestJSON[JobStatus](ctx, c, method, jobPath(id), in)
	if err != nil {
		return JobStatus{}, err
	}
	return s, c.confine(&s, id)
}

// confine checks an agent's report of a job, and converts its times to this machine's clock.
func (c *Client) confine(s *JobStatus, id string) error {
	if err := s.Confine(id, c.node); err != nil {
		*s = JobStatus{ID: id, Node: c.node}
		return c.unreachable(fmt.Errorf("reading the status of job %s: %w", id, err))
	}
	s.shiftTimes(c.Behind())
	return nil
}

// WatchJob calls each for the job's status now and after every change, until the
// job is over (nil), each fails, or the connection does.
func (c *Client) WatchJob(ctx context.Context, id string, each func(JobStatus) error) error {
	body, err := c.stream(ctx, http.MethodGet, jobPath(id)+"/watch", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	bound := &limitedReader{from: body}
	for lines := json.NewDecoder(bound); ; {
		var status JobStatus
		bound.allow(maxStatus)
		if err := lines.Decode(&status); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return c.unreachable(err)
		}
		if err := c.confine(&status, id); err != nil {
			return err
		}
		if err := each(status); err != nil {
			return err
		}
	}
}

// Log reads one log of a job from an offset in bytes. With follow it ends when
// the log is complete. After an error other than io.EOF, read again from the last offset.
func (c *Client) Log(ctx context.Context, id, name string, offset int64, follow bool) (io.ReadCloser, error) {
	query := url.Values{"offset": {strconv.FormatInt(offset, 10)}, "follow": {strconv.FormatBool(follow)}}
	return c.stream(ctx, http.MethodGet, jobPath(id)+"/logs/"+url.PathEscape(name)+"?"+query.Encode(), nil)
}

// LogEnd reads the last bytes of a log, at most so many.
func (c *Client) LogEnd(ctx context.Context, id, name string, most int64) (io.ReadCloser, error) {
	query := url.Values{"offset": {"0"}, "end": {strconv.FormatInt(most, 10)}}
	return c.stream(ctx, http.MethodGet, jobPath(id)+"/logs/"+url.PathEscape(name)+"?"+query.Encode(), nil)
}

// WriteRecord replaces a file, FabricReport, in the record of a run.
func (c *Client) WriteRecord(ctx context.Context, id, name string, content []byte) error {
	return c.send(ctx, http.MethodPut, recordPath(id, name), bytes.NewReader(content), nil)
}

// ReadRecord reads a file, FabricReport, of the record of a run. A missing one is IsNotFound.
func (c *Client) ReadRecord(ctx context.Context, id, name string) ([]byte, error) {
	body, err := c.stream(ctx, http.MethodGet, recordPath(id, name), nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	content, err := io.ReadAll(io.LimitReader(body, MaxRecordFile))
	if err != nil {
		return nil, c.unreachable(err)
	}
	return content, nil
}

func recordPath(id, name string) string {
	return "/v1/records/" + url.PathEscape(id) + "/" + url.PathEscape(name)
}
