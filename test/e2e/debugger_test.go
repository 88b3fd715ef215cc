// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// editor speaks the Debug Adapter Protocol, as editors do.
type editor struct {
	user
	conn   net.Conn
	reader *bufio.Reader
	seq    int
}

// message is a request, response or event of the protocol.
type message struct {
	Seq        int            `json:"seq"`
	Type       string         `json:"type"`
	Command    string         `json:"command,omitempty"`
	Arguments  map[string]any `json:"arguments,omitempty"`
	Event      string         `json:"event,omitempty"`
	RequestSeq int            `json:"request_seq,omitempty"`
	Success    bool           `json:"success,omitempty"`
	Message    string         `json:"message,omitempty"`
	Body       map[string]any `json:"body,omitempty"`
}

// attach attaches to the program at the address and lets it continue.
func (u user) attach(ctx context.Context, address string) *editor {
	u.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		u.Fatal(err)
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		u.Fatal(err)
	}
	e := &editor{user: u, conn: conn, reader: bufio.NewReader(conn)}
	e.send("initialize", map[string]any{"adapterID": "e2e", "clientID": "e2e", "linesStartAt1": true, "pathFormat": "path"})
	greeting := e.next()
	for greeting.Type != "response" {
		greeting = e.next()
	}
	if !greeting.Success || greeting.Body["supportsConfigurationDoneRequest"] != true {
		u.Fatalf("initialize: %+v", greeting)
	}
	e.send("attach", map[string]any{"connect": map[string]any{}, "justMyCode": true})
	for e.next().Event != "initialized" {
	}
	e.send("configurationDone", nil)
	for done := false; !done; {
		m := e.next()
		if done = m.Command == "configurationDone"; done && !m.Success {
			u.Fatalf("configurationDone: %s", m.Message)
		}
	}
	return e
}

func (e *editor) send(command string, arguments map[string]any) {
	e.seq++
	body, err := json.Marshal(message{Seq: e.seq, Type: "request", Command: command, Arguments: arguments})
	if err != nil {
		e.Fatal(err)
	}
	fmt.Fprintf(e.conn, "Content-Length: %d\r\n\r\n%s", len(body), body) // read reports a broken connection
}

func (e *editor) read() (m message, err error) {
	header, err := textproto.NewReader(e.reader).ReadMIMEHeader()
	if err != nil {
		return m, err
	}
	size, err := strconv.Atoi(header.Get("Content-Length"))
	if err != nil {
		return m, err
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(e.reader, body); err != nil {
		return m, err
	}
	return m, json.Unmarshal(body, &m)
}

func (e *editor) next() message {
	e.Helper()
	m, err := e.read()
	if err != nil {
		e.Fatalf("reading from the debugger: %v", err)
	}
	return m
}

// taskPod returns the pod of a TaskRun that was started alone, as soon as its step runs.
func (u trainer) taskPod(ctx context.Context, run, task string) (pod string) {
	u.Helper()
	options := metav1.ListOptions{LabelSelector: "tekton.dev/taskRun=" + run}
	err := kube.WatchUntil(ctx, "the pod of taskrun "+run, u.clients.Kube.CoreV1().Pods(u.namespace), options,
		func(pods []*corev1.Pod) (bool, error) {
			for _, found := range pods {
				for _, container := range found.Status.ContainerStatuses {
					if container.Name == "step-"+task && started(container) {
						pod = found.Name
					}
				}
			}
			return pod != "", nil
		})
	if err != nil {
		u.Fatal(err)
	}
	return pod
}
