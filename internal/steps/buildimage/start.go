package buildimage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	buildv1 "github.com/openshift/api/build/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ml-dev-env/ml-dev-env/internal/humanize"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// claimAnnotation on the BuildConfig says who is about to start a build of which
// inputs. Sending a folder cannot be made conditional on there being no build
// yet, so this is what keeps two that want the same from both starting one.
const claimAnnotation = "ml-dev-env/build-claim"

// claimTime is how long a claim counts: what it takes from it to the Build, with
// room for slow servers. Who dies between the two delays others by that.
const claimTime = 30 * time.Second

type claim struct {
	Inputs string    `json:"inputs"`
	Holder string    `json:"holder"`
	At     time.Time `json:"at"`
}

func readClaim(config *buildv1.BuildConfig) (c claim) {
	// An annotation that cannot be read claims nothing.
	_ = json.Unmarshal([]byte(config.Annotations[claimAnnotation]), &c)
	return c
}

// joinOrStart gives the build of our inputs that runs, else starts one.
func (b *builder) joinOrStart(ctx context.Context) (build *buildv1.Build, started bool, err error) {
	if err := b.apply(ctx); err != nil {
		return nil, false, err
	}
	name := configName(b.plan.flavour)
	for {
		config, err := b.builds.BuildConfigs(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, false, kube.Problem(fmt.Errorf("reading buildconfig %s/%s: %w", b.namespace, name, err))
		}
		if labelled(config.Spec.Output) != b.plan.inputs.fingerprint() {
			// Somebody who wants other inputs has applied them since.
			if err := b.apply(ctx); err != nil {
				return nil, false, err
			}
			continue
		}
		found, err := b.builds.Builds(b.namespace).List(ctx, buildsOf(name))
		if err != nil {
			return nil, false, kube.Problem(fmt.Errorf("listing builds of buildconfig %s/%s: %w", b.namespace, name, err))
		}
		if build := b.running(found.Items); build != nil && !b.force {
			b.log.Info(fmt.Sprintf("Build %s builds the same already, since %s; following it.", build.Name, build.CreationTimestamp.UTC().Format("15:04:05 MST")))
			return build, false, nil
		}
		if other := readClaim(config); !b.force && other.Inputs == b.plan.inputs.fingerprint() && other.Holder != b.holder {
			if left := claimTime - b.now().Sub(other.At); left > 0 && left <= claimTime {
				if build, err := b.awaitClaimed(ctx, other, left); build != nil || err != nil {
					return build, false, err
				}
			}
		}
		switch err := b.claim(ctx, config); {
		case apierrors.IsConflict(err):
			continue // somebody else has written: look again
		case err != nil:
			return nil, false, kube.Problem(fmt.Errorf("claiming the build of buildconfig %s/%s: %w", b.namespace, name, err))
		}
		build, err := b.start(ctx, found.Items)
		if errors.Is(err, errChanged) {
			continue
		}
		return build, err == nil, err
	}
}

func buildsOf(config string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: buildv1.BuildConfigLabel + "=" + config}
}

// running is the build of our inputs that has not ended, nil for none.
func (b *builder) running(builds []buildv1.Build) *buildv1.Build {
	for i := range builds {
		if inputsOf(&builds[i]) == b.plan.inputs.fingerprint() && !ended(&builds[i]) && !builds[i].Status.Cancelled {
			return &builds[i]
		}
	}
	return nil
}

func ended(build *buildv1.Build) bool {
	switch build.Status.Phase {
	case buildv1.BuildPhaseComplete, buildv1.BuildPhaseFailed, buildv1.BuildPhaseError, buildv1.BuildPhaseCancelled:
		return true
	}
	return false
}

// awaitClaimed waits for the build that somebody else is about to start. It is
// nil where none came.
func (b *builder) awaitClaimed(ctx context.Context, other claim, left time.Duration) (build *buildv1.Build, err error) {
	waiting, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err = kube.Until(waiting, "builds of "+b.plan.flavour, b.builds.Builds(b.namespace), buildsOf(configName(b.plan.flavour)), func(builds []*buildv1.Build) (bool, error) {
		for _, candidate := range builds {
			// One that has failed in the meantime is theirs too. Times of the API server are whole seconds.
			if inputsOf(candidate) == other.Inputs && !candidate.CreationTimestamp.Time.Before(other.At.Truncate(time.Second)) {
				build = candidate
			}
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

// apply makes the ImageStream and the BuildConfig what they shall be.
func (b *builder) apply(ctx context.Context) error {
	if _, err := kube.ApplyTo(ctx, b.images.ImageStreams(b.namespace), b.plan.imageStream(), kube.ApplyOptions{}); err != nil {
		return kube.Problem(err)
	}
	_, err := kube.ApplyTo(ctx, b.builds.BuildConfigs(b.namespace), b.plan.buildConfig(), kube.ApplyOptions{})
	return kube.Problem(err)
}

// claim writes ours, if the BuildConfig is still as it was read.
func (b *builder) claim(ctx context.Context, config *buildv1.BuildConfig) error {
	text, err := json.Marshal(claim{Inputs: b.plan.inputs.fingerprint(), Holder: b.holder, At: b.now().UTC()})
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
	_, err = b.builds.BuildConfigs(b.namespace).Patch(ctx, config.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: kube.FieldManager + "-claim"})
	return err
}

// errChanged says that the BuildConfig was changed just when a build was started,
// so that it was one of somebody else's inputs.
var errChanged = errors.New("the BuildConfig was changed at the same moment")

// start sends the folder and gives the Build as soon as it is there; the sending
// goes on until its pod has taken it. before are the builds that were there.
func (b *builder) start(ctx context.Context, before []buildv1.Build) (*buildv1.Build, error) {
	name := configName(b.plan.flavour)
	var folder bytes.Buffer
	if err := b.definition.pack(&folder); err != nil {
		return nil, err
	}
	b.log.Info(fmt.Sprintf("Sending the folder of %s (%s) to buildconfig %s.", b.plan.flavour, humanize.Bytes(int64(folder.Len())), name))
	sending, cancel := context.WithCancelCause(ctx)
	go func() {
		sent, err := b.send(ctx, name, folder.Bytes())
		if err == nil && inputsOf(sent) != b.plan.inputs.fingerprint() {
			err = errors.Join(errChanged, b.cancel(ctx, sent.Name))
		}
		if err != nil {
			cancel(err)
		}
	}()
	var build *buildv1.Build
	err := kube.Until(sending, "builds of "+name, b.builds.Builds(b.namespace), buildsOf(name), func(builds []*buildv1.Build) (bool, error) {
		for _, candidate := range builds {
			known := slices.ContainsFunc(before, func(old buildv1.Build) bool { return old.UID == candidate.UID })
			if !known && inputsOf(candidate) == b.plan.inputs.fingerprint() {
				build = candidate
			}
		}
		return build != nil, nil
	})
	switch {
	case build != nil:
		return build, nil
	case errors.Is(context.Cause(sending), errChanged):
		return nil, errChanged
	case ctx.Err() == nil && sending.Err() != nil:
		return nil, kube.Problem(fmt.Errorf("starting a build of buildconfig %s/%s: %w", b.namespace, name, context.Cause(sending)))
	}
	return nil, err
}

// send is the request that client-go has no method for. It ends when the build's
// pod has taken the folder.
func (b *builder) send(ctx context.Context, config string, folder []byte) (*buildv1.Build, error) {
	build := &buildv1.Build{}
	err := b.builds.RESTClient().Post().Namespace(b.namespace).Resource("buildconfigs").Name(config).SubResource("instantiatebinary").
		SetHeader("Content-Type", "application/octet-stream").Body(bytes.NewReader(folder)).Do(ctx).Into(build)
	return build, err
}
