// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	routev1 "github.com/openshift/api/route/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/env"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
)

// withServices requests these services.
func withServices(list string, routes bool) func(*provisioner) {
	return func(s *provisioner) { s.request.Services, s.request.Routes = objects.ParseServices(list), routes }
}

// answering sets node 0's facts about services that run.
func answering(f *agent.Facts) {
	for i := range f.Services {
		if f.Services[i].Name != agent.TensorBoard {
			f.Services[i].State, f.Services[i].Answers = agent.ServiceRunning, true
		}
	}
}

// credentials returns the Secret of the services.
func (p *place) credentials() map[string]string {
	p.t.Helper()
	found, err := p.kube.CoreV1().Secrets("ns").Get(context.Background(), "env-services", metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	data := map[string]string{}
	for key, value := range found.Data {
		data[key] = string(value)
	}
	return data
}

// people lists what users reach: the Service of node 0, by its ports, and the Routes.
func (p *place) people() (names []string) {
	p.t.Helper()
	service, err := p.kube.CoreV1().Services("ns").Get(context.Background(), "env", metav1.GetOptions{})
	if err == nil {
		for _, port := range service.Spec.Ports {
			names = append(names, "port "+port.Name)
		}
	} else if !apierrors.IsNotFound(err) {
		p.t.Fatal(err)
	}
	routes, err := p.routes.RouteV1().Routes("ns").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, route := range routes.Items {
		names = append(names, "route "+route.Name)
	}
	return names
}

// TestServices: provision creates, changes and removes services without replacing pods, and keeps their passwords.
func TestServices(t *testing.T) {
	p := newPlace(t).withRun(day())
	p.wrong = answering
	p.routes.PrependReactor("patch", "routes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := clienttesting.ObjectReaction(p.routes.Tracker())(action)
		if err == nil {
			obj.(*routev1.Route).Spec.Host = action.(clienttesting.PatchAction).GetName() + ".apps.test"
		}
		return handled, obj, err
	})
	if _, err := p.provisioner(withServices("all", true)).run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, p.messages())
	}
	first := p.credentials()
	if first["services"] != "code-server,jupyter,tensorboard" || len(first) != 4 {
		t.Errorf("the Secret has %v", slices.Sorted(maps.Keys(first)))
	}
	for _, s := range agent.Services() {
		value := first[s.Key]
		if len(value) < 20 || strings.Contains(p.messages(), value) {
			t.Errorf("%s: %q is too short, or is in the log", s.Key, value)
		}
	}
	want := []string{"port code-server", "port jupyter", "port tensorboard", "route env-code-server", "route env-jupyter",
		"route env-tensorboard"}
	if diff := cmp.Diff(want, p.people()); diff != "" {
		t.Errorf("for people (-want +got):\n%s", diff)
	}
	for _, line := range []string{
		"Services on node 0 are reached by: oc port-forward service/env 8080 8888 6006 -n ns",
		`code-server: http://env-864dfc92.localhost:8080/ or https://env-code-server.apps.test/ with the password that this shows: oc get ` +
			`secret env-services -n ns -o go-template='{{index .data "code-server-password" | base64decode}}'`,
		"jupyter: http://env-864dfc92.localhost:8888/lab or https://env-jupyter.apps.test/lab with the token",
		"Service tensorboard is missing: the image has no tensorboard.",
	} {
		if !strings.Contains(p.messages(), line) {
			t.Errorf("log %s\nwant %q in it", p.messages(), line)
		}
	}

	// The list of services changes, and the nodes keep running.
	p.wrong = func(f *agent.Facts) { f.Services = f.Services[:min(1, len(f.Services))]; answering(f) }
	if _, err := p.provisioner(withServices("code-server", false)).run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, p.messages())
	}
	second := p.credentials()
	first["services"] = "code-server"
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the Secret after a second provision (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"port code-server"}, p.people()); diff != "" {
		t.Errorf("for people (-want +got):\n%s", diff)
	}
	if !strings.Contains(p.messages(), "The environment exists already, as requested.") {
		t.Errorf("log %s\nwant no difference", p.messages())
	}
	if _, err := p.provisioner().run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.people(); len(got) != 0 || p.credentials()["services"] != "" {
		t.Errorf("without services there are %v", got)
	}
}

// An environment that was created without services gets one, as mlenv open asks for it: no pod changes, the others stay, and so do
// their passwords.
func TestAddService(t *testing.T) {
	p := newPlace(t).withRun(day())
	p.wrong = answering
	created := p.provisioner(withServices("tensorboard", false))
	if _, err := created.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, p.messages())
	}
	before, left := p.credentials(), p.left()
	// The kubelet updates the mounted Secret. Another user adds a service at the same time, and is first.
	others := 0
	p.kube.PrependReactor("patch", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if others++; others <= 4 { // as often as applying tries
			return true, nil, apierrors.NewConflict(corev1.Resource("secrets"), patch.GetName(), errors.New("changed since it was read"))
		}
		handled, obj, err := clienttesting.ObjectReaction(p.kube.Tracker())(action)
		if err == nil {
			p.mountServices()
		}
		return handled, obj, err
	})
	set, err := env.Of(created.clients, "env").Nodes(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, name := range []string{agent.CodeServer, agent.Jupyter, agent.Jupyter} {
		service, _ := agent.FindService(name)
		status, err := AddService(t.Context(), Deps{Clients: created.clients, Log: slog.New(p)}, "env", service, set[0])
		if err != nil || status.Name != name || !status.Answers {
			t.Fatalf("%s: %+v, %v, want that it answers\n%s", name, status, err, p.messages())
		}
	}
	before[agent.ServicesKey] = "code-server,jupyter,tensorboard"
	if diff := cmp.Diff(before, p.credentials()); diff != "" {
		t.Errorf("the Secret (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"port code-server", "port jupyter", "port tensorboard"}, p.people()); diff != "" {
		t.Errorf("for people (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(left, p.left()); diff != "" {
		t.Errorf("the other objects (-want +got):\n%s", diff)
	}
}

// What mlenv open asks for may be impossible.
func TestAddServiceThatCannotBe(t *testing.T) {
	p := newPlace(t).withRun(day())
	created := p.provisioner()
	if _, err := created.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, p.messages())
	}
	p.must(p.kube.Tracker().Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"}}))
	jupyter, _ := agent.FindService(agent.Jupyter)
	d := Deps{Clients: created.clients, Log: slog.New(p)}
	if _, err := AddService(t.Context(), d, "env", jupyter, nil); fail.ReasonOf(err) != fail.EnvironmentDiffers {
		t.Errorf("with another's service env: %v, want %s", err, fail.EnvironmentDiffers)
	}
	p.kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "env-services", errors.New("no"))
	})
	if _, err := AddService(t.Context(), d, "env", jupyter, nil); fail.ReasonOf(err) != fail.PermissionDenied {
		t.Errorf("without the right to get the Secret: %v, want %s", err, fail.PermissionDenied)
	}
}

// TestCredentialsOfAnEarlierEnvironmentAreNotKept: another user may know them.
func TestCredentialsOfAnEarlierEnvironmentAreNotKept(t *testing.T) {
	p := newPlace(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-services",
			OwnerReferences: []metav1.OwnerReference{objects.LeaseReference("env", "gone")}},
		Data: map[string][]byte{"jupyter-token": []byte("known")},
	}).withRun(day())
	if _, err := p.provisioner().run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, p.messages())
	}
	if got := p.credentials()["jupyter-token"]; got == "known" || got == "" {
		t.Errorf("the token is %q, want a new one", got)
	}
}

func TestServicesThatCannotBe(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}}}}
	noRoutes := func(p *place) {
		missing := func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(routev1.Resource("routes"), "env-jupyter")
		}
		p.routes.PrependReactor("*", "routes", missing)
	}
	theirRoute := func(p *place) {
		if err := p.routes.Tracker().Add(&routev1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "env-jupyter"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		place   func(*place)
		theirs  string // what is there before, and stays
		routes  bool
		list    string
		want    fail.Reason // "" for success
		words   string
	}{
		{"somebody's service", []runtime.Object{service}, nil, "port web", false, "jupyter", fail.EnvironmentDiffers,
			"there is a service env that ml-dev-env did not create"},
		{"somebody's service, and none asked for", []runtime.Object{service}, nil, "port web", false, "none", "", ""},
		{"somebody's route", nil, theirRoute, "route env-jupyter", true, "jupyter", fail.EnvironmentDiffers,
			"there is a route env-jupyter that ml-dev-env did not create"},
		{"somebody's route, and none asked for", nil, theirRoute, "route env-jupyter", false, "none", "", ""},
		{"no OpenShift", nil, noRoutes, "", true, "jupyter", fail.InvalidInput, "this cluster has no Routes"},
		{"no OpenShift, and none asked for", nil, noRoutes, "", false, "none", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlace(t, tc.objects...).withRun(day())
			if tc.place != nil {
				tc.place(p)
			}
			_, err := p.provisioner(withServices(tc.list, tc.routes)).run(t.Context())
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if fail.ReasonOf(err) != tc.want || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("got %s: %v, want %s with %q", fail.ReasonOf(err), err, tc.want, tc.words)
			}
			if tc.theirs != "" && !slices.Contains(p.people(), tc.theirs) {
				t.Errorf("left is %q, want %q", p.people(), tc.theirs)
			}
		})
	}
}
