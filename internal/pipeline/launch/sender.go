// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
	"github.com/ml-dev-env/ml-dev-env/internal/project"
)

const (
	// SenderAnnotation of a PipelineRun changes every senderEvery while the program runs that sends the run's folder.
	SenderAnnotation = project.LabelPrefix + "sender"
	// senderEvery is how often a program that sends a run's folder shows in the run that it still does.
	senderEvery = 15 * time.Second
	// SenderSilence is after how long without a sign a program that sends a run's folder counts as gone.
	SenderSilence = time.Minute
)

// ShowSender shows the run that the program which sends its folder runs, until ctx ends: then nothing is sent any more. A user
// who may not change runs shows nothing, and the run waits longer for a sender that is gone.
func ShowSender(ctx context.Context, clients *kube.Clients, of *v1.PipelineRun) {
	show := func(ctx context.Context, value string) {
		patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "annotations": {%q: %s}}}`, of.UID, SenderAnnotation, value)
		_, _ = clients.Tekton.TektonV1().PipelineRuns(of.Namespace).Patch(ctx, of.Name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: kube.FieldManager})
	}
	_ = wait.PollUntilContextCancel(ctx, senderEvery, true, func(ctx context.Context) (bool, error) {
		show(ctx, strconv.Quote(time.Now().UTC().Format(time.RFC3339)))
		return false, nil
	})
	const patience = 5 * time.Second // for the last request after the upload
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	show(ending, "null")
}

// SenderGone returns once the annotation of the run has not changed for SenderSilence; false if ctx ends before. Only this machine's clock
// counts. A run without the annotation has no sender that could be gone: it has not begun to send, or has sent everything.
func SenderGone(ctx context.Context, clients *kube.Clients, name string) bool {
	var last string
	seen := time.Now()
	return wait.PollUntilContextCancel(ctx, senderEvery/3, true, func(ctx context.Context) (bool, error) {
		found, err := clients.Tekton.TektonV1().PipelineRuns(clients.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || found.Annotations[SenderAnnotation] != last {
			seen = time.Now() // an API server that cannot be asked cannot be told either
		}
		if err == nil {
			last = found.Annotations[SenderAnnotation]
		}
		return last != "" && time.Since(seen) >= SenderSilence, nil
	}) == nil
}
