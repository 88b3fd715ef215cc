// SPDX-License-Identifier: Apache-2.0

package host

import (
	"maps"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

func TestProxies(t *testing.T) {
	given := map[string]string{"HTTPS_PROXY": "http://proxy.example.com:3128", "NO_PROXY": "example.com"}
	want := map[string]string{
		"https_proxy": given["HTTPS_PROXY"], "HTTPS_PROXY": given["HTTPS_PROXY"],
		"no_proxy": "example.com," + topology.Direct, "NO_PROXY": "example.com," + topology.Direct,
	}
	got := Proxies(func(name string) string { return given[name] })
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if again := Proxies(func(name string) string { return got[name] }); !maps.Equal(again, want) {
		t.Errorf("in a program that was started with them: %v, want %v", again, want)
	}
	if got := Proxies(func(string) string { return "" }); got != nil {
		t.Errorf("without a proxy: %v", got)
	}
}
