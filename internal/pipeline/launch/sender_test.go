// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/internal/kube"
)

// TestSender: a run notices within a minute or so that the program which sends its folder was killed, and never takes one that
// runs, has ended in order, or has not begun, for gone.
func TestSender(t *testing.T) {
	for _, test := range []struct {
		name string
		// killed ends the sender without its last word.
		sends, killed, ends bool
		want                bool
	}{
		{name: "it runs", sends: true},
		{name: "it was killed", sends: true, killed: true, want: true},
		{name: "it has sent the folder", sends: true, ends: true},
		{name: "it has not begun"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := &v1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", UID: "uid"}}
				clients := &kube.Clients{Tekton: fake.NewSimpleClientset(of), Namespace: "ns"}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch {
				case test.killed:
					of.Annotations = map[string]string{SenderAnnotation: "some time ago"}
					clients.Tekton = fake.NewSimpleClientset(of)
				case test.sends:
					sending, end := context.WithCancel(ctx)
					defer end()
					if test.ends {
						time.AfterFunc(20*time.Second, end)
					}
					go ShowSender(sending, clients, of)
				}
				const long = 5 * time.Minute
				waiting, done := context.WithTimeout(ctx, long)
				defer done()
				began := time.Now()
				got := SenderGone(waiting, clients, "one")
				if took := time.Since(began); got != test.want || got && (took < SenderSilence || took > SenderSilence+senderEvery) {
					t.Errorf("got %t after %s, want %t", got, took, test.want)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
