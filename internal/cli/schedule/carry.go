// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/install"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// selector selects the objects of schedules.
const selector = install.PartLabel + "=" + part

var cronJobs = batchv1.SchemeGroupVersion.WithResource("cronjobs")

// ObjectsWithImage returns the objects of the namespace's schedules as this version creates them, with another image of the steps, so
// that schedules and pipeline stay at one version. Errors: PermissionDenied; InvalidInput for an invalid schedule.
func ObjectsWithImage(ctx context.Context, client dynamic.Interface, namespace, image string) ([]*unstructured.Unstructured, error) {
	found, err := client.Resource(cronJobs).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) {
		return nil, nil // the namespace does not exist
	} else if err != nil {
		return nil, kube.Problem(fmt.Errorf("listing schedules in %s: %w", namespace, err))
	}
	var all []*unstructured.Unstructured
	var problems []error
	for _, each := range found.Items {
		var job batchv1.CronJob
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(each.Object, &job); err != nil {
			return nil, fmt.Errorf("reading cronjob %s/%s: %w", namespace, each.GetName(), err)
		}
		s, err := readSchedule(&job)
		if err != nil {
			problems = append(problems, fail.Advise(err, "oc delete cronjob %s -n %s, and install the schedule again", job.Name, namespace))
			continue
		}
		objects, err := s.untyped(namespace, image)
		problems = append(problems, err)
		all = append(all, objects...)
	}
	return all, errors.Join(problems...)
}

// untyped returns the Objects as install applies them.
func (s Schedule) untyped(namespace, image string) ([]*unstructured.Unstructured, error) {
	return install.Untyped(s.Objects(namespace, image))
}
