package agent

import (
	"bytes"
	"cmp"
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
	"slices"
	"strconv"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// Dialer connects to a node's agent, by the pod's address or through the API server.
type Dialer func(ctx context.Context, node int) (net.Conn, error)

// Credentials are one side of the mutual TLS.
type Credentials struct {
	Certificate tls.Certificate
	CA          *x509.CertPool
}

// ReadCredentials reads ca.crt, tls.crt and tls.key of a mounted client Secret.
// A folder without them is fs.ErrNotExist.
func ReadCredentials(dir string) (Credentials, error) {
	var files [3][]byte
	for i, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return Credentials{}, err
		}
	}
	return ParseCredentials(files[0], files[1], files[2])
}

// ParseCredentials reads credentials from PEM.
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

// ServerTLS is the configuration of an agent: it requires a certificate of the same CA, of the steps or of another agent. Go would
// verify client certificates alone, and agents of earlier releases do: an agent's certificate stays one of a server, which they refuse.
func (c Credentials) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		ClientCAs:    c.CA,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: c.CA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			})
			return err
		},
		NextProtos: []string{"h2", "http/1.1"},
	}
}

// FromStep reports whether the client of a verified connection is a step. Else it is another agent, which may only read trees.
func FromStep(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && slices.Contains(state.PeerCertificates[0].ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}

// Client talks to one node's agent. All requests share one connection.
type Client struct {
	node  int
	http  *http.Client
	clock clock
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
		// A step that talks to hundreds of nodes cannot hold 4 MiB, Go's default, of the unread answer of each. A quarter of that, in frames
		// larger than the usual 16 KiB, is enough for a log to arrive as fast as from a larger buffer.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second, MaxReadFrameSize: 128 << 10, MaxReceiveBufferPerStream: 1 << 20},
	}
	// An agent redirects nowhere.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{node: node, http: &http.Client{Transport: transport, CheckRedirect: stay}}
}

// Node is the ordinal of the node.
func (c *Client) Node() int { return c.node }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Health asks whether the agent answers. An agent of another protocol is fail.AgentVersion.
func (c *Client) Health(ctx context.Context) (Health, error) {
	h, err := ask[Health](ctx, c, http.MethodGet, "/v1/health", nil)
	return h, cmp.Or(err, c.sameProtocol(h))
}

func (c *Client) sameProtocol(h Health) error {
	if h.Protocol == Protocol {
		return nil
	}
	return fail.Advise(fail.Becausef(fail.AgentVersion, "talking to the agent of node %d: it speaks protocol %d (version %s), this program %d",
		c.node, h.Protocol, short(h.Version), Protocol),
		"tear the environment down and provision it again, or use the version of the tasks that created it")
}

// Facts returns what the node is and has.
func (c *Client) Facts(ctx context.Context) (Facts, error) {
	f, err := ask[Facts](ctx, c, http.MethodGet, "/v1/facts", nil)
	f.Confine(c.node)
	return f, cmp.Or(err, c.sameProtocol(f.Health))
}

// RDMA returns the RDMA devices of the node and their state. expected is the cluster file's.
func (c *Client) RDMA(ctx context.Context, expected rdma.Expected) (rdma.Facts, error) {
	return ask[rdma.Facts](ctx, c, http.MethodPost, "/v1/rdma", expected)
}

// SetNetwork configures the network of everything that the node starts from now on. It returns the variables that the agent
// now sets for every job and shell.
func (c *Client) SetNetwork(ctx context.Context, network Network) (environment map[string]string, err error) {
	return ask[map[string]string](ctx, c, http.MethodPut, "/v1/network", network)
}

// Workspace returns the workspace's volume alone, which costs less than Facts.
func (c *Client) Workspace(ctx context.Context) (Volume, error) {
	return ask[Volume](ctx, c, http.MethodGet, "/v1/workspace", nil)
}

// Resolve returns what names resolve to on the node.
func (c *Client) Resolve(ctx context.Context, names []string) (Resolution, error) {
	return ask[Resolution](ctx, c, http.MethodPost, "/v1/resolve", names)
}

// Turn asks for the turn at the network between the nodes, which an agent gives to one client at a time, and waits for it, at most
// for limit. It ends with release, or with the connection.
func (c *Client) Turn(ctx context.Context, limit time.Duration) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	tooLong := time.AfterFunc(limit, cancel)
	defer tooLong.Stop()
	body, err := c.stream(ctx, http.MethodPost, "/v1/turn", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() {
		cancel()
		body.Close()
	}, nil
}

// SendTree streams the missing contents, as tree.WriteContents writes them.
func (c *Client) SendTree(ctx context.Context, hash tree.Digest, contents io.Reader) (TreeState, error) {
	return ask[TreeState](ctx, c, http.MethodPut, "/v1/trees/"+string(hash)+"/content", contents)
}

// PullTree has the node receive the contents that it misses of a planned tree from another node. An error of reason SyncFailed may be
// the other node's fault. An agent of an earlier release answers IsNotFound.
func (c *Client) PullTree(ctx context.Context, hash tree.Digest, from int) (TreeState, error) {
	return ask[TreeState](ctx, c, http.MethodPost, "/v1/trees/"+string(hash)+"/pull", Pull{From: from})
}

// TreeContents reads contents of a tree that the node holds, as tree.WriteContents writes them. An agent may ask it, too.
func (c *Client) TreeContents(ctx context.Context, hash tree.Digest, contents []tree.Digest) (io.ReadCloser, error) {
	return c.stream(ctx, http.MethodPost, "/v1/trees/"+string(hash)+"/contents", contents)
}

// SwitchTree makes a tree the current one.
func (c *Client) SwitchTree(ctx context.Context, hash tree.Digest, s Switch) (TreeState, error) {
	return ask[TreeState](ctx, c, http.MethodPost, "/v1/trees/"+string(hash)+"/switch", s)
}

// Tree returns a tree that the node holds, complete. For another one the error is IsNotFound.
func (c *Client) Tree(ctx context.Context, hash tree.Digest) (TreeState, error) {
	return ask[TreeState](ctx, c, http.MethodGet, "/v1/trees/"+string(hash), nil)
}

// CurrentTree returns the tree at the stable path. Its hash is empty before the first sync.
func (c *Client) CurrentTree(ctx context.Context) (TreeState, error) {
	return ask[TreeState](ctx, c, http.MethodGet, "/v1/trees/current", nil)
}

// StartJob starts the node's part of a job. If a job of that id exists, running or ended, it returns its status and starts
// nothing.
func (c *Client) StartJob(ctx context.Context, id string, spec JobSpec) (JobStatus, error) {
	return c.jobStatus(ctx, http.MethodPut, id, spec)
}

// StopJob ends a job: SIGTERM, and SIGKILL after the grace. It does not wait.
func (c *Client) StopJob(ctx context.Context, id string, stop Stop) error {
	return c.call(ctx, http.MethodPost, jobPath(id)+"/stop", stop, nil)
}

// Job returns a job's status. An unknown job is IsNotFound.
func (c *Client) Job(ctx context.Context, id string) (JobStatus, error) {
	return c.jobStatus(ctx, http.MethodGet, id, nil)
}

func jobPath(id string) string { return "/v1/jobs/" + url.PathEscape(id) }

func (c *Client) jobStatus(ctx context.Context, method, id string, in any) (JobStatus, error) {
	s, err := ask[JobStatus](ctx, c, method, jobPath(id), in)
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
	s.shift(c.Behind())
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

// LogEnd reads the last bytes of a log, at most so many. An agent of an earlier version sends all of it.
func (c *Client) LogEnd(ctx context.Context, id, name string, most int64) (io.ReadCloser, error) {
	query := url.Values{"offset": {"0"}, "end": {strconv.FormatInt(most, 10)}}
	return c.stream(ctx, http.MethodGet, jobPath(id)+"/logs/"+url.PathEscape(name)+"?"+query.Encode(), nil)
}

// WriteRecord replaces a file, FabricReport, in the record of a run.
func (c *Client) WriteRecord(ctx context.Context, id, name string, content []byte) error {
	return c.call(ctx, http.MethodPut, recordPath(id, name), bytes.NewReader(content), nil)
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

// IsNotFound reports whether err is an agent's answer that a job, log or tree does not exist.
func IsNotFound(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == http.StatusNotFound
}

// IgnoreNotFound is nil for an error of IsNotFound, and err for any other.
func IgnoreNotFound(err error) error {
	if IsNotFound(err) {
		return nil
	}
	return err
}

// statusError is an answer other than 2xx.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func ask[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	err = c.call(ctx, method, path, in, &out)
	return out, err
}

// call sends a request, and reads the answer into out unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := c.stream(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
		return err
	}
	answer := &limitedReader{from: body}
	if err := json.NewDecoder(answer.allow(maxBytes(out))).Decode(out); err != nil {
		return c.unreachable(fmt.Errorf("reading the answer to %s %s: %w", method, path, err))
	}
	return nil
}

// stream sends a request, whose body is a reader, or what to send in JSON, or nil for none. It returns the body of the answer.
func (c *Client) stream(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	body, streamed := in.(io.Reader)
	if in != nil && !streamed {
		content, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encoding a request to the agent: %w", err)
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://agent"+path, body)
	if err != nil {
		return nil, err
	}
	StampClock(request.Header)
	sent := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		// The URL of a url.Error names no real host.
		return nil, c.unreachable(cmp.Or(ctx.Err(), errors.Unwrap(err)))
	}
	c.clock.observe(sent, time.Now(), response.Header)
	if response.StatusCode/100 == 2 {
		return response.Body, nil
	}
	defer response.Body.Close()
	var problem Problem
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&problem); err != nil {
		problem.Message = fmt.Sprintf("%s %s: the agent answered %s", method, path, response.Status)
	}
	failure := error(&statusError{code: response.StatusCode, message: fmt.Sprintf("node %d: %s", c.node, problem.Message)})
	if problem.Reason != "" {
		failure = fail.Because(problem.Reason, failure)
	}
	if problem.Next != "" {
		failure = fail.Advise(failure, "%s", problem.Next)
	}
	return nil, failure
}

// unreachable marks an error of the connection, after which the caller may retry.
func (c *Client) unreachable(err error) error {
	return fail.Because(fail.AgentUnreachable, fmt.Errorf("talking to the agent of node %d: %w", c.node, err))
}

// ShellVariable has the ID in the environment of `mlenv-agent exec --shell=ID`.
const ShellVariable = "MLENV_SHELL"

// ShellPatience is how long a shell outlives the last KeepShell: a container runtime may leave it running when the connection
// has ended.
const ShellPatience = 45 * time.Second

// ShellGrace is the time between hanging up a shell and SIGKILL.
const ShellGrace = 5 * time.Second

// KeepShell keeps the shell of that id, which may not have started yet, for ShellPatience. After that the agent hangs it up.
func (c *Client) KeepShell(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodPut, "/v1/shells/"+url.PathEscape(id), nil, nil)
}

// EndShell hangs up a shell, as the loss of its terminal does. A shell that has ended is no error.
func (c *Client) EndShell(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/shells/"+url.PathEscape(id), nil, nil)
}
