// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

// claimAnnotation on the BuildConfig names the caller that is about to start a build, and its inputs. The request that
// starts a build cannot depend on whether one exists, so the claim keeps two callers from both starting one.
const claimAnnotation = project.LabelPrefix + "build-claim"

// claimTime is how long a claim is valid: the time from the claim to the Build on a slow server. A caller that dies in
// between delays others by that much.
const claimTime = 30 * time.Second

type claim struct {
	made
	Holder string `json:"holder"`
	// Caller is random: one user or run may call twice at once.
	Caller string    `json:"caller"`
	At     time.Time `json:"at"`
}

func readClaim(config *buildv1.BuildConfig) (c claim) {
	// An unreadable annotation is not a claim.
	_ = json.Unmarshal([]byte(config.Annotations[claimAnnotation]), &c)
	return c
}

// sending is the upload of the folder by which this step has started a build.
type sending struct {
	// ended is closed when the server has answered; err is its answer.
	ended chan struct{}
	err   error
}

// arrived reports whether the build has the folder.
func (s *sending) arrived() bool {
	select {
	case <-s.ended:
		return s.err == nil
	default:
		return false
	}
}

// brokeOff reports whether the folder may not have reached the build, for a cause that passes.
func (s *sending) brokeOff() bool {
	select {
	case <-s.ended:
		return kube.Passes(s.err)
	default:
		return false
	}
}

// joinOrStart returns a build of our inputs. started is nil if another caller has started the build.
func (b *builder) joinOrStart(ctx context.Context) (build *buildv1.Build, started *sending, err error) {
	if err := b.apply(ctx); err != nil {
		return nil, nil, err
	}
	name := configName(b.flavour)
	for {
		config, err := b.builds.BuildConfigs(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, kube.Problem(fmt.Errorf("reading buildconfig %s/%s: %w", b.namespace, name, err))
		}
		if madeFor(config.Spec.Output).Inputs != b.inputs.fingerprint() {
			// Another caller has applied other inputs since.
			if err := b.apply(ctx); err != nil {
				return nil, nil, err
			}
			continue
		}
		found, err := b.builds.Builds(b.namespace).List(ctx, buildsOf(name))
		if err != nil {
			return nil, nil, kube.Problem(fmt.Errorf("listing builds of buildconfig %s/%s: %w", b.namespace, name, err))
		}
		if build := b.running(found.Items); build != nil && !b.force {
			wanted, err := b.markWaiting(ctx, build.Name)
			if err != nil {
				return nil, nil, err
			}
			if !wanted {
				continue // it was cancelled meanwhile
			}
			b.log.Info(fmt.Sprintf("Build %s builds the same already, since %s; following it.",
				build.Name, build.CreationTimestamp.UTC().Format("15:04:05 MST")))
			return build, nil, nil
		}
		if other := readClaim(config); !b.force && b.inputs.buildsTheSame(other.made) && other.Caller != b.caller && other.Caller != b.former {
			// The clocks of two machines differ: the claim may be from the future.
			if age := b.now().Sub(other.At).Abs(); age < claimTime {
				build, err := b.awaitClaimed(ctx, other, claimTime-age)
				if err == nil && build != nil {
					var wanted bool
					if wanted, err = b.markWaiting(ctx, build.Name); err == nil && !wanted {
						continue
					}
				}
				if build != nil || err != nil {
					return build, nil, err
				}
			}
		}
		switch err := b.claim(ctx, config); {
		case apierrors.IsConflict(err):
			continue // another caller has written
		case err != nil:
			return nil, nil, kube.Problem(fmt.Errorf("claiming the build of buildconfig %s/%s: %w", b.namespace, name, err))
		}
		build, started, err := b.start(ctx)
		if errors.Is(err, errChanged) || b.mayRepeat(ctx, err) {
			continue
		}
		return build, started, err
	}
}

// notReceivedError is the error if no build has received the whole folder, for a cause that passes.
type notReceivedError struct{ error }

func (e notReceivedError) Unwrap() error { return e.error }

// mayRepeat reports whether to start a build after one that has not received the folder. The next one is started under another name of
// the caller: the API server may still carry an earlier request out, and then cancels its Build, because the folder does not arrive.
func (b *builder) mayRepeat(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !errors.As(err, &notReceivedError{}) {
		return false
	}
	if b.failing.IsZero() {
		b.failing = b.now()
	}
	if b.now().Sub(b.failing) > b.patience {
		return false
	}
	b.former, b.caller = b.caller, rand.Text()
	b.log.Warn(fmt.Sprintf("Sending the folder again: %v", err))
	return true
}

func buildsOf(config string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: buildv1.BuildConfigLabel + "=" + config}
}

// running returns the build of our inputs that has not ended, nil for none.
func (b *builder) running(builds []buildv1.Build) *buildv1.Build {
	for i := range builds {
		without := b.former != "" && callerOf(&builds[i]) == b.former // it lacks the folder
		if b.inputs.buildsTheSame(madeFor(builds[i].Spec.Output)) && !buildEnded(&builds[i]) && !builds[i].Status.Cancelled && !without {
			return &builds[i]
		}
	}
	return nil
}

func buildEnded(build *buildv1.Build) bool {
	switch build.Status.Phase {
	case buildv1.BuildPhaseComplete, buildv1.BuildPhaseFailed, buildv1.BuildPhaseError, buildv1.BuildPhaseCancelled:
		return true
	}
	return false
}

// callerOf returns the caller that has started the build, "" if it is unknown. send gives the server the caller as the
// folder's commit, which OpenShift copies into the Build and, without a git source, uses for nothing else.
func callerOf(build *buildv1.Build) string {
	if revision := build.Spec.Revision; revision != nil && revision.Git != nil {
		return revision.Git.Commit
	}
	return ""
}

// startedBy returns the build of our inputs that the caller has started, nil for none.
func (b *builder) startedBy(caller string, builds []*buildv1.Build) *buildv1.Build {
	for _, build := range builds {
		if callerOf(build) == caller && b.inputs.buildsTheSame(madeFor(build.Spec.Output)) {
			return build
		}
	}
	return nil
}

// awaitClaimed waits for the build that another caller is about to start. It returns nil if none appears, or if that build
// was cancelled.
func (b *builder) awaitClaimed(ctx context.Context, other claim, left time.Duration) (build *buildv1.Build, err error) {
	waiting, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err = kube.WatchUntil(waiting, "builds of "+b.flavour, b.builds.Builds(b.namespace), buildsOf(configName(b.flavour)),
		func(builds []*buildv1.Build) (bool, error) {
			// A build that has failed meanwhile counts too.
			build = b.startedBy(other.Caller, builds)
			if build != nil && build.Status.Cancelled {
				build = nil
				return true, nil
			}
			return build != nil, nil
		})
	if build != nil {
		b.log.Info(fmt.Sprintf("%s has just started build %s of the same; following it.", other.Holder, build.Name))
		return build, nil
	}
	if ctx.Err() == nil && waiting.Err() != nil {
		return nil, nil
	}
	return nil, err
}

func (b *builder) apply(ctx context.Context) error {
	stream, err := kube.ApplyTo(ctx, b.images.ImageStreams(b.namespace), b.imageStream(), kube.ApplyOptions{})
	if err != nil {
		return b.problem(err)
	}
	if stream.Status.DockerImageRepository == "" {
		return fail.Advise(fail.Becausef(fail.BuildUnavailable, "building image %s: ImageStream %s/%s has no repository: the cluster's "+
			"internal registry is not enabled", b.flavour, b.namespace, StreamName),
			"an administrator enables it: oc patch configs.imageregistry.operator.openshift.io/cluster --type=merge"+
				" --patch='{\"spec\":{\"managementState\":\"Managed\"}}'; or name an existing image: param image")
	}
	_, err = kube.ApplyTo(ctx, b.builds.BuildConfigs(b.namespace), b.buildConfig(), kube.ApplyOptions{})
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "build strategy Docker is not allowed") {
		// An administrator has taken this right, which every user has at first.
		return fail.Advise(fail.Because(fail.PermissionDenied, err), "oc adm policy add-role-to-user system:build-strategy-docker %s -n %s; or "+
			"name an existing image: param image", kube.WhoAsks(ctx, b.kube), b.namespace)
	}
	if err != nil {
		return b.problem(err)
	}
	return nil
}

// claim writes our claim, if the BuildConfig has not changed since it was read.
func (b *builder) claim(ctx context.Context, config *buildv1.BuildConfig) error {
	text, err := json.Marshal(claim{made: b.inputs.made(), Holder: b.holder, Caller: b.caller, At: b.now().UTC()})
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": config.ResourceVersion,
		"annotations":     map[string]string{claimAnnotation: string(text)},
	}})
	if err != nil {
		return err
	}
	_, err = b.builds.BuildConfigs(b.namespace).Patch(ctx, config.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: kube.FieldManager + "-claim"})
	return err
}

// errChanged is the error if the BuildConfig changed just when a build started, which so has another caller's inputs.
var errChanged = errors.New("the BuildConfig was changed at the same moment")

// start sends the folder and returns the Build as soon as it exists; sending continues until the build's pod has received
// the folder.
func (b *builder) start(ctx context.Context) (*buildv1.Build, *sending, error) {
	name := configName(b.flavour)
	var folder bytes.Buffer
	if err := b.definition.writeContext(&folder, b.inputs); err != nil {
		return nil, nil, err
	}
	now, err := b.definition.scanContext()
	if err == nil && !slices.Equal(now, b.inputs.Context) {
		err = fail.Becausef(fail.InvalidInput, "building %s: its folder has changed since the build was decided; start it again", b.flavour)
	}
	if err != nil {
		return nil, nil, err
	}
	b.log.Info(fmt.Sprintf("Sending the folder of %s (%s) to buildconfig %s.", b.flavour, humanize.Bytes(int64(folder.Len())), name))
	starting, cancel := context.WithCancelCause(ctx)
	started := &sending{ended: make(chan struct{})}
	go func() {
		defer close(started.ended)
		var sent *buildv1.Build
		sent, started.err = b.send(ctx, name, folder.Bytes())
		if started.err == nil && madeFor(sent.Spec.Output).Inputs != b.inputs.fingerprint() {
			started.err = errors.Join(errChanged, b.cancel(ctx, sent.Name))
		}
		if started.err != nil {
			cancel(started.err)
		}
	}()
	var build *buildv1.Build
	find := func(ctx context.Context, wait bool) error {
		return kube.WatchUntil(ctx, "builds of "+name, b.builds.Builds(b.namespace), buildsOf(name), func(builds []*buildv1.Build) (bool, error) {
			build = b.startedBy(b.caller, builds)
			return build != nil || !wait, nil
		})
	}
	err = find(starting, true)
	cause := context.Cause(starting)
	passes := cause != nil && kube.Passes(cause)
	if build == nil && ctx.Err() == nil && cause != nil && !errors.Is(cause, errChanged) {
		// The server may answer before the watch shows a build that failed at once; the Build explains more than the answer. Without an
		// answer the request may be carried out a little later.
		limit := answerTime
		if passes {
			limit = lateTime
		}
		looking, stop := context.WithTimeout(ctx, limit)
		defer stop()
		_ = find(looking, passes)
	}
	switch {
	case build != nil:
		return build, started, nil
	case errors.Is(cause, errChanged):
		return nil, nil, errChanged
	case ctx.Err() == nil && passes:
		return nil, nil, notReceivedError{b.notStarted(cause)}
	case ctx.Err() == nil && cause != nil:
		return nil, nil, b.notStarted(cause)
	}
	return nil, nil, err
}

// missingAccount matches the server's internal error for a BuildConfig whose service account does not exist.
var missingAccount = regexp.MustCompile(`serviceaccounts? "([^"]+)" not found`)

func (b *builder) notStarted(cause error) error {
	err := fmt.Errorf("starting a build of buildconfig %s/%s: %w", b.namespace, configName(b.flavour), cause)
	if account := missingAccount.FindStringSubmatch(cause.Error()); account != nil {
		return fail.Advise(fail.Because(fail.BuildUnavailable, err),
			"oc create serviceaccount %s -n %s; oc policy add-role-to-user system:image-builder -z %[1]s -n %[2]s (OpenShift creates both in a "+
				"new project, unless its builds are disabled)", account[1], b.namespace)
	}
	return kube.Problem(err)
}

// send makes a request for which client-go has no method. It ends when the build's pod has received the folder. The client does not
// repeat it after a lost answer, because each request starts a build: start looks for the Build first.
func (b *builder) send(ctx context.Context, config string, folder []byte) (*buildv1.Build, error) {
	build := &buildv1.Build{}
	err := b.builds.RESTClient().Post().Namespace(b.namespace).Resource("buildconfigs").Name(config).SubResource("instantiatebinary").
		Param("revision.commit", b.caller).SetHeader("Content-Type", "application/octet-stream").Body(bytes.NewReader(folder)).Do(ctx).Into(build)
	return build, err
}
