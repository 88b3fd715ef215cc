// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ml-dev-env/ml-dev-env/test/apitest"
)

// Whichever request to the API server fails once, and however, Start creates one run and its receipt, and returns that run.
func TestEveryRequestMayFail(t *testing.T) {
	apitest.EachFault(t, func(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) string {
		account := &corev1.ServiceAccount{
			ObjectMeta:       metav1.ObjectMeta{Namespace: "ns", Name: ServiceAccount},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		}
		server := apitest.Start(t, account)
		values := map[string][]string{"repo-url": {"https://example.com/r"}, "script": {"s"}}
		request := Request{Pipeline: pipeline(), Name: "mine", Values: values}
		made, err := Start(t.Context(), server.Clients(wrap), request)
		if err != nil {
			return err.Error()
		}
		found, err := server.Clients(nil).Tekton.TektonV1().PipelineRuns("ns").Get(t.Context(), "mine", metav1.GetOptions{})
		return fmt.Sprint(err, " the same: ", found.UID == made.UID && made.UID != "", " ", strings.Join(server.Paths(), " "))
	})
}
