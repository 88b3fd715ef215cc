package syncrepo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/source/tree"
)

// sentScheme is before the tree's hash in place of a repository's URL.
const sentScheme = "folder:"

// sendTime is how long whoever started the run may take to send the folder, without
// the installation of its requirements.
const sendTime = 15 * time.Minute

// lookAgain is how often the nodes are asked whether it has come: they tell nobody of a switch. It is a
// request of some bytes on a connection that stays.
const lookAgain = time.Second

// sent is a folder of the person who started the run.
type sent struct {
	tree tree.Digest
	// requirements is RequirementsDigest of what is installed for it, "" for nothing.
	requirements tree.Digest
}

// SentURL stands for a repository where the tree is a folder of the person who
// started the run: they send it to the nodes, install its requirements (RequirementsDigest of them, "" for none)
// and switch to it, as SendFolder does.
func SentURL(hash, requirements tree.Digest) string {
	return strings.TrimSuffix(sentScheme+string(hash)+"/"+string(requirements), "/")
}

// IsSentURL is true of what SentURL makes.
func IsSentURL(url string) bool { return strings.HasPrefix(url, sentScheme) }

// readSentURL undoes SentURL.
func readSentURL(url string) (sent, error) {
	hash, requirements, installs := strings.Cut(strings.TrimPrefix(url, sentScheme), "/")
	of := sent{tree.Digest(hash), tree.Digest(requirements)}
	if !of.tree.Valid() || installs && !of.requirements.Valid() {
		return sent{}, fmt.Errorf("--repo-url %q: want %s and 64 lower-case hex digits, and as many behind a slash where there are requirements", url, sentScheme)
	}
	return of, nil
}

// on is true of nodes that have it, with what it requires: the tree may have been the current one
// before, of a run with other requirements.
func (s sent) on(state agent.TreeState) bool {
	venv := ""
	if state.Venv != "" {
		venv = path.Base(state.Venv)
	}
	return state.Hash == s.tree && venv == string(s.requirements)
}

// await waits until the folder is on all nodes. Errors: SyncFailed where nobody brings it in time.
func await(ctx context.Context, log *slog.Logger, set nodes.Set, of sent, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	log.Info(fmt.Sprintf("Waiting for tree %.12s, which whoever started the run sends to the nodes.", of.tree), "tree", of.tree)
	err := set.Each(waiting, func(ctx context.Context, client *agent.Client) error {
		for {
			state, err := client.CurrentTree(ctx)
			switch {
			case err == nil && of.on(state):
				return nil
			case err != nil && fail.ReasonOf(err) != fail.AgentUnreachable && !errors.Is(err, context.DeadlineExceeded):
				return err
			}
			select {
			case <-time.After(lookAgain):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	switch {
	case err == nil:
		log.Info(fmt.Sprintf("%s is tree %.12s on all nodes now.", agent.Current, of.tree), "tree", of.tree)
		return nil
	case ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded):
		return fail.Advise(fail.Becausef(fail.SyncFailed, "waiting for tree %s: it is not on all nodes after %s", of.tree, humanize.Duration(limit)),
			"start the run again, and leave mlenv run going until it says that the folder is sent")
	}
	return err
}
