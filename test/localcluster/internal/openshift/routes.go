// SPDX-License-Identifier: Apache-2.0

package openshift

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"

	routev1 "github.com/openshift/api/route/v1"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// appsDomain is the domain of the hosts of Routes. Nothing answers there, because there is no router.
const appsDomain = "apps." + topology.Domain

// generatedAnnotation is on a Route whose host the cluster chose.
const generatedAnnotation = "openshift.io/host.generated"

// admitRoute gives a Route a host if it names none. An update without a host keeps the old host.
func (s *server) admitRoute(_ context.Context, request *admissionv1.AdmissionRequest) ([]byte, error) {
	var route routev1.Route
	if err := json.Unmarshal(request.Object.Raw, &route); err != nil {
		return nil, err
	}
	if route.Spec.Host != "" || route.Spec.Subdomain != "" {
		return nil, nil
	}
	if request.Operation == admissionv1.Update {
		var old routev1.Route
		if err := json.Unmarshal(request.OldObject.Raw, &old); err != nil {
			return nil, err
		}
		return json.Marshal([]patchOperation{{Op: "add", Path: "/spec/host", Value: old.Spec.Host}})
	}
	if route.Name == "" { // the API server generates the name only after admission
		return nil, nil
	}
	annotations := map[string]string{generatedAnnotation: "true"}
	maps.Copy(annotations, route.Annotations)
	return json.Marshal([]patchOperation{
		{Op: "add", Path: "/metadata/annotations", Value: annotations},
		{Op: "add", Path: "/spec/host", Value: generatedHost(route.Name, request.Namespace)},
	})
}

func generatedHost(name, namespace string) string {
	return fmt.Sprintf("%s-%s.%s", name, namespace, appsDomain)
}

// routeAdmitter marks Routes as admitted by a router, although there is no router.
type routeAdmitter struct{ clients Clients }

func (r routeAdmitter) watch(ctx context.Context, informer cache.SharedInformer) error {
	seen := func(obj any) {
		route, ok := obj.(*routev1.Route)
		if !ok {
			return
		}
		if err := r.admit(ctx, route); err != nil {
			log.Print(err)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
	})
	return err
}

func (r routeAdmitter) admit(ctx context.Context, route *routev1.Route) error {
	host := route.Spec.Host
	switch {
	case host == "" && route.Spec.Subdomain != "":
		host = route.Spec.Subdomain + "." + appsDomain
	case host == "":
		host = generatedHost(route.Name, route.Namespace)
	}
	since := metav1.Now()
	if ingress := route.Status.Ingress; len(ingress) > 0 && len(ingress[0].Conditions) > 0 &&
		ingress[0].Conditions[0].LastTransitionTime != nil {
		since = *ingress[0].Conditions[0].LastTransitionTime
	}
	want := []routev1.RouteIngress{{
		Host: host, RouterName: "default", RouterCanonicalHostname: "router-default." + appsDomain, WildcardPolicy: routev1.WildcardPolicyNone,
		Conditions: []routev1.RouteIngressCondition{{Type: routev1.RouteAdmitted, Status: corev1.ConditionTrue, LastTransitionTime: &since}},
	}}
	if equality.Semantic.DeepEqual(route.Status.Ingress, want) {
		return nil
	}
	route = route.DeepCopy()
	route.Status.Ingress = want
	_, err := r.clients.Routes.Routes(route.Namespace).UpdateStatus(ctx, route, metav1.UpdateOptions{})
	// A conflict or a deletion causes another event.
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("admitting route %s/%s: %w", route.Namespace, route.Name, err)
	}
	return nil
}
