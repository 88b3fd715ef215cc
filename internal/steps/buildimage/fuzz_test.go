// SPDX-License-Identifier: Apache-2.0

package buildimage

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// FuzzReadKeys: an error about a pull secret never quotes it, and a registry that it does not name gets no credentials.
func FuzzReadKeys(f *testing.F) {
	f.Add(`{"auths":{"quay.io":{"username":"me","password":"hunter2"}}}`, true)
	f.Add(`{"auths":{"https://quay.io/v2/":{"auth":"bWU6aHVudGVyMg=="}}}`, true)
	f.Add(`{"quay.io":{"auth":"not base64 hunter2"}}`, false)
	f.Add(`{"auths":{"*.example.com":{"auth":"bWU6aHVudGVyMg=="}}}`, true)
	other, err := name.NewRegistry("registry.invalid")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, modern bool) {
		key := ".dockercfg"
		if modern {
			key = ".dockerconfigjson"
		}
		keys, err := readKeys(map[string]string{key: text})
		if err != nil {
			if len(text) > 20 && strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error quotes the secret: %v", err)
			}
			return
		}
		// A pattern such as * may name any registry.
		if strings.ContainsAny(text, `*?[\`) || strings.Contains(text, "invalid") {
			return
		}
		if found, err := keys.Resolve(other); err == nil && found != authn.Anonymous {
			t.Errorf("%q has credentials for %s", text, other)
		}
	})
}
