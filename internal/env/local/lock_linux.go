// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/agent/server"
	"github.com/ml-dev-env/ml-dev-env/internal/claimfile"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// The lock belongs to the open file, so the kernel releases it when the process ends, whatever ends it, and other threads and files of
// one process respect it.

// lockFile creates a file, and holds a lock on it until it is closed.
func lockFile(path string) (*os.File, error) {
	file, err := claimfile.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := setLock(file); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
	}
	if _, err := fmt.Fprintln(file, os.Getpid()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func setLock(file *os.File) error {
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
}

// Running reports whether the run is in progress: its process holds the lock.
func (r Run) Running() bool {
	file, err := claimfile.Open(r.path(lockName))
	if err != nil {
		return false
	}
	defer file.Close()
	asked := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	return unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &asked) == nil && asked.Type != unix.F_UNLCK
}

// lock takes the lock of a run that has ended. Errors: EnvironmentBusy.
func (r Run) lock() (unlock func(), err error) {
	file, err := claimfile.OpenFile(r.path(lockName), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := setLock(file); errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, errors.Join(r.BusyError(), file.Close())
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", file.Name(), err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// Checkpoint returns the newest whole checkpoint in the working directory of a run of so many ranks, "" for none.
func (r Run) Checkpoint(ctx context.Context, ranks int) (path string, err error) {
	found, err := server.Paths{Workspace: r.Folder}.CheckpointsIn(ctx, r.Name, agent.CheckpointSearch{World: ranks, All: true})
	for _, c := range found {
		if c.Missing == "" {
			return filepath.Join(r.Folder, agent.WorkFolder, r.Name, c.Name), err
		}
	}
	return "", err
}

// Connect returns the nodes of a run in progress. Errors: EnvironmentMissing if it has ended.
func (r Run) Connect() (set nodes.Set, err error) {
	at, err := r.reach()
	var credentials agent.Credentials
	if err == nil {
		credentials, err = agent.ReadCredentials(at.TLS)
	}
	if !r.Running() {
		over := fail.Becausef(fail.EnvironmentMissing, "looking for the nodes of local run %s: the run is over, and its nodes with it", r.Name)
		return nil, fail.Advise(over, "mlenv receipt %s", r.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the nodes of local run %s: %w", r.Name, err)
	}
	dial := func(ctx context.Context, node int) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at.Addresses[node])
	}
	for node, address := range at.Addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		set = append(set, agent.NewClient(node, host, credentials, dial))
	}
	return set, nil
}
