// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// A full disk has its own reason, whatever the handler was doing.
func TestDiskFullIsSaid(t *testing.T) {
	s := &Server{config: Config{Node: 3}}
	s.collecting.Lock() // nothing is collected
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		answer := httptest.NewRecorder()
		s.refuse(answer, httptest.NewRequest(http.MethodPut, "/v1/jobs/1", nil),
			fail.Because(fail.SyncFailed, &fs.PathError{Op: "write", Path: "/workspace/repo/a", Err: cause}))
		var got agent.Problem
		if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		want := agent.Problem{Reason: fail.DiskFull, Message: "write /workspace/repo/a: " + cause.Error(),
			Next: "delete obsolete files from the workspace claim: mlenv shell 3 -- sh -c 'du -sh /workspace/* /workspace/.mlenv/*'; " +
				"or have the claim expanded"}
		if got != want || answer.Code != http.StatusUnprocessableEntity {
			t.Errorf("status %d, %+v; want 422, %+v", answer.Code, got, want)
		}
	}
}
