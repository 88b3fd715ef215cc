package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Dialer connects to a node's agent, by the pod's address or through the API server.
type Dialer func(ctx context.Context, node int) (net.Conn, error)

// Credentials are the client's side of the mutual TLS.
type Credentials struct {
	Certificate tls.Certificate
	CA          *x509.CertPool
}

// ReadCredentials reads ca.crt, tls.crt and tls.key of a mounted client Secret.
// A folder without them is fs.ErrNotExist.
func ReadCredentials(dir string) (Credentials, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return Credentials{}, err
	}
	cert, err := os.ReadFile(filepath.Join(dir, "tls.crt"))
	if err != nil {
		return Credentials{}, err
	}
	key, err := os.ReadFile(filepath.Join(dir, "tls.key"))
	if err != nil {
		return Credentials{}, err
	}
	return ParseCredentials(ca, cert, key)
}

// ParseCredentials reads PEM.
func ParseCredentials(ca, cert, key []byte) (Credentials, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return Credentials{}, errors.New("reading ca.crt: no certificate in it")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Credentials{}, fmt.Errorf("reading tls.crt and tls.key: %w", err)
	}
	return Credentials{Certificate: pair, CA: pool}, nil
}

// Client talks to one node's agent. All requests share one connection.
type Client struct {
	node int
	http *http.Client
}

// NewClient makes the client of one node; serverName is the name in the node's certificate.
func NewClient(node int, serverName string, credentials Credentials, dial Dialer) *Client {
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, node) },
		ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			ServerName:   serverName,
			RootCAs:      credentials.CA,
			Certificates: []tls.Certificate{credentials.Certificate},
		},
		TLSHandshakeTimeout: 10 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second},
	}
	return &Client{node: node, http: &http.Client{Transport: transport}}
}

// Node is the ordinal of the node.
func (c *Client) Node() int { return c.node }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health asks whether the agent answers. An agent of another protocol is fail.AgentVersion.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var h Health
	err := c.call(ctx, http.MethodGet, "/v1/health", nil, &h)
	return h, errors.Join(err, c.sameProtocol(h, err))
}

func (c *Client) sameProtocol(h Health, err error) error {
	if err != nil || h.Protocol == Protocol {
		return nil //nolint:nilerr // the caller joins err itself
	}
	return fail.Advise(fail.Becausef(fail.AgentVersion, "talking to the agent of node %d: it speaks protocol %d (version %s), this program %d",
		c.node, h.Protocol, h.Version, Protocol),
		"tear the environment down and provision it again, or use the version of the tasks that made it")
}

// Facts asks what the node is and has.
func (c *Client) Facts(ctx context.Context) (Facts, error) {
	var f Facts
	err := c.call(ctx, http.MethodGet, "/v1/facts", nil, &f)
	return f, errors.Join(err, c.sameProtocol(f.Health, err))
}

// RDMA asks what RDMA devices the node was given, and how they are. expected is
// the cluster file's.
func (c *Client) RDMA(ctx context.Context, expected rdma.Expected) (rdma.Facts, error) {
	var f rdma.Facts
	err := c.call(ctx, http.MethodPost, "/v1/rdma", expected, &f)
	return f, err
}

// SetNetwork sets how what the node starts from now on talks to other nodes. It returns
// what the agent sets then for every job and shell.
func (c *Client) SetNetwork(ctx context.Context, network Network) (environment map[string]string, err error) {
	err = c.call(ctx, http.MethodPut, "/v1/network", network, &environment)
	return environment, err
}

// Workspace asks for the workspace's volume alone, which costs less than Facts.
func (c *Client) Workspace(ctx context.Context) (Volume, error) {
	var v Volume
	err := c.call(ctx, http.MethodGet, "/v1/workspace", nil, &v)
	return v, err
}

// Resolve asks the node what names resolve to there.
func (c *Client) Resolve(ctx context.Context, names []string) (Resolution, error) {
	var r Resolution
	err := c.call(ctx, http.MethodPost, "/v1/resolve", names, &r)
	return r, err
}

// PlanTree tells the node what a tree consists of and learns what it needs.
func (c *Client) PlanTree(ctx context.Context, hash tree.Digest, m tree.Manifest) (TreePlan, error) {
	var p TreePlan
	err := c.call(ctx, http.MethodPost, "/v1/trees/"+string(hash), m, &p)
	return p, err
}

// SendTree streams the missing contents, as tree.WriteContents writes them.
func (c *Client) SendTree(ctx context.Context, hash tree.Digest, contents io.Reader) (TreeState, error) {
	var s TreeState
	err := c.do(ctx, http.MethodPut, "/v1/trees/"+string(hash)+"/content", "application/zstd", contents, &s)
	return s, err
}

// SwitchTree makes a tree the current one.
func (c *Client) SwitchTree(ctx context.Context, hash tree.Digest, s Switch) (TreeState, error) {
	var state TreeState
	err := c.call(ctx, http.MethodPost, "/v1/trees/"+string(hash)+"/switch", s, &state)
	return state, err
}

// CurrentTree is what the stable path leads to; an empty hash where nothing was synced.
func (c *Client) CurrentTree(ctx context.Context) (TreeState, error) {
	var state TreeState
	err := c.call(ctx, http.MethodGet, "/v1/trees/current", nil, &state)
	return state, err
}

// StartJob starts the node's part of a job. A job of that id that is there
// already, running or ended, is answered and not started again.
func (c *Client) StartJob(ctx context.Context, id string, spec JobSpec) (JobStatus, error) {
	var s JobStatus
	err := c.call(ctx, http.MethodPut, "/v1/jobs/"+url.PathEscape(id), spec, &s)
	return s, err
}

// StopJob ends a job: SIGTERM, and SIGKILL after the grace. It does not wait.
func (c *Client) StopJob(ctx context.Context, id string, stop Stop) error {
	return c.call(ctx, http.MethodPost, "/v1/jobs/"+url.PathEscape(id)+"/stop", stop, nil)
}

// Job asks for a job's status. An unknown job is IsNotFound.
func (c *Client) Job(ctx context.Context, id string) (JobStatus, error) {
	var s JobStatus
	err := c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id), nil, &s)
	return s, err
}

// WatchJob calls each for the job's status now and after every change, until the
// job is over (nil), each fails, or the connection does.
func (c *Client) WatchJob(ctx context.Context, id string, each func(JobStatus) error) error {
	body, err := c.stream(ctx, "/v1/jobs/"+url.PathEscape(id)+"/watch")
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var status JobStatus
		if err := lines.Decode(&status); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return c.unreachable(err)
		}
		if err := each(status); err != nil {
			return err
		}
	}
}

// Log reads one log of a job from an offset in bytes. With follow it ends when
// the log is complete; an error other than io.EOF wants a reconnect from where it broke.
func (c *Client) Log(ctx context.Context, id, name string, offset int64, follow bool) (io.ReadCloser, error) {
	query := url.Values{"offset": {strconv.FormatInt(offset, 10)}, "follow": {strconv.FormatBool(follow)}}
	return c.stream(ctx, "/v1/jobs/"+url.PathEscape(id)+"/logs/"+url.PathEscape(name)+"?"+query.Encode())
}

// WriteRecord puts a file, FabricReport, into the record of a run, in place of an earlier one.
func (c *Client) WriteRecord(ctx context.Context, id, name string, content []byte) error {
	return c.do(ctx, http.MethodPut, recordPath(id, name), "application/octet-stream", bytes.NewReader(content), nil)
}

// ReadRecord reads a file, FabricReport, of the record of a run. One that is not there is IsNotFound.
func (c *Client) ReadRecord(ctx context.Context, id, name string) ([]byte, error) {
	body, err := c.stream(ctx, recordPath(id, name))
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

// IsNotFound is true of an answer that there is no such job, log or tree.
func IsNotFound(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == http.StatusNotFound
}

// statusError is an answer that is not 2xx.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding a request to the agent: %w", err)
		}
		body = bytes.NewReader(data)
	}
	return c.do(ctx, method, path, "application/json", body, out)
}

func (c *Client) do(ctx context.Context, method, path, contentType string, body io.Reader, out any) error {
	response, err := c.request(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	if err := json.NewDecoder(response.Body).Decode(out); err != nil {
		return c.unreachable(fmt.Errorf("reading the answer to %s %s: %w", method, path, err))
	}
	return nil
}

func (c *Client) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	response, err := c.request(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

func (c *Client) request(ctx context.Context, method, path, contentType string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://agent"+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		// The URL in it names a host that does not exist.
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		switch ended := ctx.Err(); {
		case errors.Is(ended, context.Canceled):
			return nil, ended
		case ended != nil:
			// Nobody gave it up: the node did not answer in time.
			err = ended
		}
		return nil, c.unreachable(err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	var problem Problem
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&problem); err != nil {
		problem.Message = fmt.Sprintf("%s %s: the agent answered %s", method, path, response.Status)
	}
	failure := error(&statusError{code: response.StatusCode, message: fmt.Sprintf("node %d: %s", c.node, problem.Message)})
	if problem.Reason != "" {
		failure = fail.Because(fail.Reason(problem.Reason), failure)
	}
	if problem.Next != "" {
		failure = fail.Advise(failure, "%s", problem.Next)
	}
	return nil, failure
}

// unreachable is an error of the connection, which may be tried again.
func (c *Client) unreachable(err error) error {
	return fail.Because(fail.AgentUnreachable, fmt.Errorf("talking to the agent of node %d: %w", c.node, err))
}
