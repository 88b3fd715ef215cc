// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func accountOf(name, secret string, age time.Duration) *corev1.ServiceAccount {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
	if secret != "" {
		account.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return account
}

// TestAccountWithPullSecrets tests when a new account is waited for. The fake creates no Secrets: from the third request on, the
// account has one if the case says so.
func TestAccountWithPullSecrets(t *testing.T) {
	const own, others, missing = "steps-dockercfg-x", "default-dockercfg-y", "missing"
	images := []*metav1.APIResourceList{{GroupVersion: "image.openshift.io/v1"}}
	for _, test := range []struct {
		name             string
		secret           string // of the account
		age              time.Duration
		others           string // the Secret of the account default
		othersAge        time.Duration
		resources        []*metav1.APIResourceList
		comes, waits, ok bool
	}{
		{"it has them", own, 0, "", time.Hour, images, false, false, true},
		{"others have them", "", 0, others, time.Hour, nil, true, true, true},
		{"only a user's", "ngc", 0, others, time.Hour, nil, true, true, true},
		{"none gets any", "", 0, "", time.Hour, images, false, false, false},
		{"a new namespace with image streams", "", 0, "", 0, images, true, true, true},
		{"a new namespace with image streams, without the registry", "", 0, "", pullSecretTime - time.Second, images, false, true, false},
		{"a new namespace of plain Kubernetes", "", 0, "", 0, nil, false, false, false},
		{"the account default is missing in a new namespace", "", 0, missing, 0, images, true, true, true},
		{"and on plain Kubernetes", "", 0, missing, 0, nil, false, false, false},
		{"and for good", "", 0, missing, 0, images, false, true, false},
		{"the account default was deleted", "", time.Hour, missing, 0, images, false, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(accountOf("steps", test.secret, test.age))
				if test.others != missing {
					if err := client.Tracker().Add(accountOf("default", test.others, test.othersAge)); err != nil {
						t.Fatal(err)
					}
				}
				client.Resources = test.resources
				asked := 0
				client.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if action.(clienttesting.GetAction).GetName() != "steps" {
						return false, nil, nil
					}
					if asked++; asked > 2 && test.comes {
						return true, accountOf("steps", own, 0), nil
					}
					return false, nil, nil
				})
				var said []string
				account, err := (&Clients{Kube: client}).AccountWithPullSecrets(t.Context(), "ns", "steps", func(line string) {
					said = append(said, line)
				})
				if err != nil || HasPullSecret(account) != test.ok {
					t.Errorf("got %+v, %v; want pull secrets %v", account, err, test.ok)
				}
				lines := strings.Join(said, "\n")
				if strings.HasPrefix(lines, "Waiting until service account steps has its pull secrets.") != test.waits {
					t.Errorf("it waited %v, want %v: %q", !test.waits, test.waits, lines)
				}
				if strings.Contains(lines, "got no pull secrets within 30s") != (test.waits && !test.ok) {
					t.Errorf("the warning is wrong: %q", lines)
				}
			})
		})
	}
}

// The API server has a plain text for a group that it does not know, and no Status as for an object. That is no reason to ask again.
func TestPullSecretsOfPlainKubernetes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/ns/serviceaccounts/"); ok {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(accountOf(name, "", 0))
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	if awaits, err := AwaitsPullSecret(t.Context(), clients.Kube, accountOf("steps", "", 0), time.Now()); awaits || err != nil {
		t.Errorf("it waits: %t, %v", awaits, err)
	}
}

// TestPullSecretsDespiteErrors: an API server that does not answer about the account default neither prevents nor ends the wait.
func TestPullSecretsDespiteErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		fails  int // the number of the request for the account default that gets no answer
		others string
		want   []string
	}{
		{"before the wait", 1, "default-dockercfg-y", []string{"Waiting until service account steps has its pull secrets."}},
		{"during the wait", 2, "default-dockercfg-y", []string{"Waiting until service account steps has its pull secrets."}},
		{"none gets any", 1, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(accountOf("default", test.others, time.Hour))
				asked := map[string]int{}
				client.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
					name := action.(clienttesting.GetAction).GetName()
					asked[name]++
					switch {
					case name == "default" && asked[name] == test.fails:
						return true, nil, apierrors.NewServiceUnavailable("etcd has no leader")
					case name == "steps" && asked[name] > 3 && test.others != "":
						return true, accountOf("steps", "steps-dockercfg-x", 0), nil
					case name == "steps":
						return true, accountOf("steps", "", 0), nil
					}
					return false, nil, nil
				})
				var said []string
				account, err := (&Clients{Kube: client}).AccountWithPullSecrets(t.Context(), "ns", "steps", func(line string) {
					said = append(said, line)
				})
				if err != nil || HasPullSecret(account) != (test.others != "") {
					t.Errorf("got %+v, %v; want pull secrets %v", account, err, test.others != "")
				}
				if !slices.Equal(said, test.want) {
					t.Errorf("it said %q, want %q", said, test.want)
				}
			})
		})
	}
}

// TestWaitForPullSecretsEnds: Ctrl-C ends the wait.
func TestWaitForPullSecretsEnds(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	client := fake.NewClientset(accountOf("steps", "", 0), accountOf("default", "default-dockercfg-y", time.Hour))
	_, err := (&Clients{Kube: client}).AccountWithPullSecrets(ctx, "ns", "steps", func(string) { stop() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}
