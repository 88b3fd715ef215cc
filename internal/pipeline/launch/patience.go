package launch

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// patiently asks again, for about a minute, while the API server is away: a run that has
// ended has an outcome all the same, and whoever has followed it for hours wants it.
func patiently(ctx context.Context, ask func() error) error {
	var last error
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8}
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(context.Context) (bool, error) {
		if last = ask(); kube.Transient(last) {
			return false, nil
		}
		return true, last
	})
	if last != nil {
		return last
	}
	return err
}
