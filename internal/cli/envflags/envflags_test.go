// SPDX-License-Identifier: Apache-2.0

package envflags

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ml-dev-env/ml-dev-env/internal/command"
	"github.com/ml-dev-env/ml-dev-env/internal/env/objects"
	"github.com/ml-dev-env/ml-dev-env/internal/fail"
	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// A user must name a colleague's environment to work in it. If a user examines an environment without naming it, mlenv reports
// its holder.
func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name string
		// held maps environments to their holders.
		held  map[string]string
		reads bool
		args  []string
		want  string
		log   string
		fails string
	}{
		{name: "none", want: objects.DefaultName},
		{name: "mine", held: map[string]string{"mine": "me", "theirs": "kim"}, want: "mine", log: "Environment ns/mine: it is held by me"},
		{name: "mine, and the default is a colleague's", held: map[string]string{"mine": "me", objects.DefaultName: "kim"}, want: "mine",
			log: "ns/mine"},
		{name: "two of mine, one of them the default", held: map[string]string{"mine": "me", objects.DefaultName: "me"},
			want: objects.DefaultName},
		{name: "two of mine", held: map[string]string{"a": "me", "b": "me"}, want: objects.DefaultName,
			fails: "there are a, b: want one of them"},
		{name: "named", held: map[string]string{"mine": "me"}, args: []string{"--name=theirs"}, want: "theirs"},
		{name: "to work in a colleague's", held: map[string]string{"theirs": "kim"}, want: objects.DefaultName},
		{name: "to examine a colleague's", held: map[string]string{"theirs": "kim"}, reads: true, want: "theirs",
			log: "Environment ns/theirs: it is held by kim"},
		{name: "to examine one of two", held: map[string]string{"theirs": "kim", "others": "lee"}, reads: true, want: objects.DefaultName,
			fails: "there are others, theirs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true,
					&authenticationv1.SelfSubjectReview{
						Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "me"}}}, nil
			})
			for name, holder := range tc.held {
				held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: objects.Labels(name)},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
				if err := client.Tracker().Add(held); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			f := Flags{Reads: tc.reads}
			flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
			f.AddTo(flags, "")
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := f.choose(t.Context(), &kube.Clients{Kube: client, Namespace: "ns"}, command.TextLog(&log))
			if tc.fails == "" && err != nil || tc.fails != "" && (fail.ReasonOf(err) != fail.InvalidInput ||
				!strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("got error %v, want %q", err, tc.fails)
			}
			if f.Environment != tc.want || !strings.Contains(log.String(), tc.log) || tc.log == "" && log.Len() > 0 {
				t.Errorf("got %s and %q, want %s and %q", f.Environment, log.String(), tc.want, tc.log)
			}
		})
	}
}
