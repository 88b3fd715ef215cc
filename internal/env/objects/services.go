// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"
	"strings"

	routev1 "github.com/openshift/api/route/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env/internal/names"
)

// Words for several services at once.
const (
	NoServices  = "none"
	AllServices = "all"
)

// ParseServices reads a list of services: names with commas, none or all. Validate refuses unknown names.
func ParseServices(text string) []string {
	switch text {
	case NoServices, "":
		return nil
	case AllServices:
		var names []string
		for _, s := range agent.Services() {
			names = append(names, s.Name)
		}
		return names
	}
	names := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// ServiceObjects has the objects that the services on node 0 need.
type ServiceObjects struct {
	// Secret has the list of services. provision adds the passwords and tokens.
	Secret *corev1.Secret
	// NodeZero is nil without services.
	NodeZero *corev1.Service
	Routes   []*routev1.Route
}

// All returns the objects that exist.
func (o ServiceObjects) All() []Object {
	objects := []Object{o.Secret}
	if o.NodeZero != nil {
		objects = append(objects, o.NodeZero)
	}
	for _, route := range o.Routes {
		objects = append(objects, route)
	}
	return objects
}

func (r Request) services() (services []agent.Service) {
	for _, s := range agent.Services() {
		if slices.Contains(r.Services, s.Name) {
			services = append(services, s)
		}
	}
	return services
}

func (c *checker) services(r Request) {
	for _, name := range r.Services {
		if _, ok := agent.FindService(name); !ok {
			c.mistake("services", name, "want %s, %s, or names with commas: %s", NoServices, AllServices,
				strings.Join(ParseServices(AllServices), ","))
		}
	}
	if r.Routes && len(r.Services) == 0 {
		c.mistake("routes", r.Routes, "routes lead to services; want services too")
	}
}

func (b builder) servicesAll() ServiceObjects {
	return ServiceObjects{Secret: b.servicesSecret(), NodeZero: b.nodeZero(), Routes: b.routes()}
}

func (b builder) servicesSecret() *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: b.ownedMeta(b.names.ServicesSecret),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{agent.ServicesKey: []byte(strings.Join(b.Services, ","))},
	}
}

func (b builder) nodeZero() *corev1.Service {
	selector := names.Selector(b.Name)
	selector["statefulset.kubernetes.io/pod-name"] = b.names.PodName(0)
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: b.ownedMeta(b.names.NodeZero),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: selector},
	}
	for _, s := range b.services() {
		service.Spec.Ports = append(service.Spec.Ports, servicePort(s.Name, s.Port))
	}
	if len(service.Spec.Ports) == 0 {
		return nil
	}
	return service
}

// routes lead to the services from outside the cluster, by hosts that the router chooses.
func (b builder) routes() (routes []*routev1.Route) {
	if !b.Routes {
		return nil
	}
	for _, s := range b.services() {
		routes = append(routes, &routev1.Route{
			TypeMeta:   metav1.TypeMeta{APIVersion: routev1.GroupVersion.String(), Kind: "Route"},
			ObjectMeta: b.ownedMeta(b.names.RouteName(s.Name)),
			Spec: routev1.RouteSpec{
				To:   routev1.RouteTargetReference{Kind: "Service", Name: b.names.NodeZero, Weight: new(int32(100))},
				Port: &routev1.RoutePort{TargetPort: intstr.FromString(s.Name)},
				TLS: &routev1.TLSConfig{
					Termination: routev1.TLSTerminationEdge, InsecureEdgeTerminationPolicy: routev1.InsecureEdgeTerminationPolicyRedirect,
				},
				WildcardPolicy: routev1.WildcardPolicyNone,
			},
		})
	}
	return routes
}
