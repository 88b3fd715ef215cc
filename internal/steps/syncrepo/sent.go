// SPDX-License-Identifier: Apache-2.0

package syncrepo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/pipeline/launch"
	"github.com/ml-dev-env/ml-dev-env/internal/source/git"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// sendTime is how long mlenv run may take to upload the tree.
const sendTime = 15 * time.Minute

// pollEvery is how often each node is asked for its tree, by a small request on an open connection.
const pollEvery = time.Second

// SentURL replaces the repository's URL if the user who starts the run sends a folder with Upload. requirements is their
// RequirementsDigest, "" for none.
func SentURL(hash, requirements tree.Digest) string {
	return strings.TrimSuffix(git.FolderScheme+string(hash)+"/"+string(requirements), "/")
}

// readSentURL reverses SentURL.
func readSentURL(url string) (hash, requirements tree.Digest, err error) {
	first, second, installs := strings.Cut(strings.TrimPrefix(url, git.FolderScheme), "/")
	hash, requirements = tree.Digest(first), tree.Digest(second)
	if !hash.Valid() || installs && !requirements.Valid() {
		return "", "", fmt.Errorf("--repo-url %q: want %s and 64 lower-case hex digits, and as many after a slash if there are requirements", url,
			git.FolderScheme)
	}
	return hash, requirements, nil
}

// errGone ends the wait for a tree whose sender is gone.
var errGone = errors.New("its sender is gone")

// awaitTree waits until all nodes hold the tree. Errors: SyncFailed if it does not arrive in time, or if its sender is gone.
func (s sender) awaitTree(ctx context.Context, hash tree.Digest, limit time.Duration, gone func(context.Context) bool) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	waiting, stop := context.WithCancelCause(waiting)
	defer stop(nil)
	if gone != nil {
		go func() {
			if gone(waiting) {
				stop(errGone)
			}
		}()
	}
	s.log.Info(fmt.Sprintf("Waiting until mlenv run has sent tree %.12s to the nodes.", hash))
	err := s.nodes.Each(waiting, func(ctx context.Context, client *agent.Client) error {
		return wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
			_, err := client.Tree(ctx, hash)
			if agent.IsNotFound(err) || fail.ReasonOf(err) == fail.AgentUnreachable || errors.Is(err, context.DeadlineExceeded) {
				return false, nil
			}
			return err == nil, err
		})
	})
	switch {
	case err == nil:
		s.log.Debug(fmt.Sprintf("Tree %.12s is on %s.", hash, humanize.Count(len(s.nodes), "node")))
		return nil
	case ctx.Err() != nil:
		return fail.Becausef(fail.Cancelled, "waiting for tree %s: the run was cancelled; if it could not be sent, mlenv run has printed "+
			"the cause", hash)
	case errors.Is(context.Cause(waiting), errGone):
		return fail.Advise(fail.Becausef(fail.SyncFailed, "waiting for tree %s: mlenv run, which sends it, has shown no sign of life for %s",
			hash, humanize.Duration(launch.SenderSilence)),
			"start the run again, and keep mlenv run running until it reports that it has sent the folder")
	case errors.Is(waiting.Err(), context.DeadlineExceeded):
		return fail.Advise(fail.Becausef(fail.SyncFailed, "waiting for tree %s: it is not on all nodes after %s", hash, humanize.Duration(limit)),
			"start the run again, and keep mlenv run running until it reports that it has sent the folder")
	}
	return err
}
