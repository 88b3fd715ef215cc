package syncrepo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/nodes"
	"github.com/ml-dev-env/ml-dev-env/internal/tree"
	"github.com/ml-dev-env/ml-dev-env/internal/words"
)

// sentScheme is before the tree's hash in place of a repository's URL.
const sentScheme = "folder:"

// sendTime is how long whoever started the run may take to send the folder, without
// the installation of its requirements.
const sendTime = 15 * time.Minute

// lookAgain is how often the nodes are asked whether it has come.
const lookAgain = time.Second

// SentURL stands for a repository where the tree is a folder of the person who
// started the run: they send it to the nodes and switch to it, as SendFolder does.
func SentURL(hash tree.Digest) string { return sentScheme + string(hash) }

// IsSentURL is true of what SentURL makes.
func IsSentURL(url string) bool { return strings.HasPrefix(url, sentScheme) }

// sentTree is the tree of a SentURL.
func sentTree(url string) (tree.Digest, error) {
	hash := tree.Digest(strings.TrimPrefix(url, sentScheme))
	if !hash.Valid() {
		return "", fmt.Errorf("--repo-url %q: want %s and 64 lower-case hex digits", url, sentScheme)
	}
	return hash, nil
}

// await waits until the tree is the current one of all nodes, with a virtual environment
// or without: it may have been current before, of a run with other requirements. Errors:
// SyncFailed where nobody brings it in time.
func await(ctx context.Context, log *slog.Logger, set nodes.Set, hash tree.Digest, venv bool, limit time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	log.Info(fmt.Sprintf("Waiting for tree %.12s, which whoever started the run sends to the nodes.", hash))
	err := set.Each(waiting, func(ctx context.Context, client *agent.Client) error {
		for {
			state, err := client.CurrentTree(ctx)
			switch {
			case err == nil && state.Hash == hash && (state.Venv != "") == venv:
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
		log.Info(fmt.Sprintf("%s is tree %.12s on all nodes now.", agent.Current, hash))
		return nil
	case ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded):
		return fail.Advise(fail.Becausef(fail.SyncFailed, "waiting for tree %s: it is not on all nodes after %s", hash, words.Duration(limit)),
			"start the run again, and leave mlenv run going until it says that the folder is sent")
	}
	return err
}
