package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/diagnose"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// lookEvery bounds how often the whole state is read: changes come in bursts.
const lookEvery = 500 * time.Millisecond

// sayEvery is how often a state that does not change is said again.
const sayEvery = 30 * time.Second

// waitReady waits until every node's agent answers. It ends early where waiting
// cannot help.
func (p *provisioner) waitReady(ctx context.Context, credentials agent.Credentials) ([]*corev1.Pod, error) {
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	asked := newAnswers(p, credentials, poke)
	var mu sync.Mutex
	var pods []*corev1.Pod
	go func() {
		options := metav1.ListOptions{LabelSelector: objects.Selector(p.request.Name).String()}
		err := kube.Until(watching, "the pods of environment "+p.request.Name, p.clients.Kube.CoreV1().Pods(p.request.Namespace), options,
			func(seen []*corev1.Pod) (bool, error) {
				mu.Lock()
				pods = seen
				mu.Unlock()
				asked.ask(watching, seen)
				poke()
				return false, nil
			})
		stop(err)
	}()
	go func() {
		// Some causes, such as a refused pod, are told in events alone.
		_ = kube.Until(watching, "events", p.clients.Kube.CoreV1().Events(p.request.Namespace), metav1.ListOptions{},
			func([]*corev1.Event) (bool, error) { poke(); return false, nil })
	}()
	report := &reporter{p: p, sizes: map[string]agent.Bytes{}}
	var looked time.Time
	for {
		select {
		case <-changed:
		case <-watching.Done():
			return nil, p.notReady(ctx, context.Cause(watching))
		}
		mu.Lock()
		seen := slices.Clone(pods)
		mu.Unlock()
		if asked.all(seen) {
			return seen, nil
		}
		if left := lookEvery - time.Since(looked); left > 0 {
			time.AfterFunc(left, poke)
			continue
		}
		looked = time.Now()
		if err := report.look(watching); err != nil && watching.Err() == nil {
			return nil, err
		}
	}
}

// notReady names what was in the way when the time was over.
func (p *provisioner) notReady(ctx context.Context, cause error) error {
	if errors.Is(cause, context.Canceled) {
		return fail.Becausef(fail.Cancelled, "waiting for environment %s/%s: told to end", p.request.Namespace, p.request.Name)
	}
	if ctx.Err() == nil {
		return cause
	}
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	snapshot, err := diagnose.Collect(looking, p.clients.Kube, p.request.Namespace, p.request.Name)
	if err != nil {
		return errors.Join(cause, err)
	}
	findings := diagnose.Explain(snapshot, p.now())
	if len(findings) > 0 {
		return withCause(findings[0].Err("waiting for"), cause)
	}
	progress := diagnose.Progress(snapshot, p.now())
	return fail.Advise(fail.Becausef(fail.PodsNotReady, "waiting for environment %s/%s: %w: %v", p.request.Namespace, p.request.Name, cause, progress),
		"give it more time with --start-timeout, or look: oc describe pods -n %s -l %s", p.request.Namespace, objects.Selector(p.request.Name))
}

// withCause keeps the reason and the advice of err.
func withCause(err, cause error) error {
	return fail.Advise(fail.Because(fail.ReasonOf(err), fmt.Errorf("%w (%w)", err, cause)), "%s", fail.NextOf(err))
}

// reporter says where the pods are, when that changes and now and then.
type reporter struct {
	p     *provisioner
	said  []string
	at    time.Time
	asked bool
	mu    sync.Mutex
	sizes map[string]agent.Bytes
}

func (r *reporter) look(ctx context.Context) error {
	snapshot, err := diagnose.Collect(ctx, r.p.clients.Kube, r.p.request.Namespace, r.p.request.Name)
	if err != nil {
		return err
	}
	r.askSize(ctx)
	r.mu.Lock()
	snapshot.ImageSizes = map[string]agent.Bytes{}
	for image, size := range r.sizes {
		snapshot.ImageSizes[image] = size
	}
	r.mu.Unlock()
	now := r.p.now()
	findings := diagnose.Explain(snapshot, now)
	if i := slices.IndexFunc(findings, func(f fail.Finding) bool { return f.Final }); i >= 0 {
		return findings[i].Err("waiting for")
	}
	lines := diagnose.Progress(snapshot, now)
	for _, finding := range findings {
		lines = append(lines, fmt.Sprintf("%s: %s", finding.Reason, finding.Err("waiting for")))
	}
	for _, line := range lines {
		if !slices.Contains(r.said, line) && (now.Sub(r.at) > sayEvery || !similar(r.said, line)) {
			r.p.log.Info("  " + line)
			r.at = now
		}
	}
	r.said = lines
	return nil
}

// similar is true of a line that was said with another time in it.
func similar(said []string, line string) bool {
	return slices.ContainsFunc(said, func(old string) bool { return withoutDigits(old) == withoutDigits(line) })
}

func withoutDigits(s string) string {
	return string(slices.DeleteFunc([]rune(s), func(r rune) bool { return r >= '0' && r <= '9' || r == 'm' || r == 's' }))
}

// askSize finds out how big the image is, once, beside the waiting.
func (r *reporter) askSize(ctx context.Context) {
	if r.asked {
		return
	}
	r.asked = true
	go func() {
		image := r.p.request.Image
		if size, ok := diagnose.ImageSize(ctx, image); ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sizes[image] = size
		}
	}()
}
