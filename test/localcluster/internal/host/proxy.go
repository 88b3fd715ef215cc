// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Proxies returns the variables for the machine's proxy, and those for what programs reach without it, to which the cluster belongs, in
// upper and lower case: each program reads one of them. Without a proxy it returns nil.
func Proxies(getenv func(string) string) map[string]string {
	set := map[string]string{}
	add := func(name, value string) { set[name], set[strings.ToLower(name)] = value, value }
	given := func(name string) string { return cmp.Or(getenv(strings.ToLower(name)), getenv(name)) }
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		if value := given(name); value != "" {
			add(name, value)
		}
	}
	if len(set) == 0 {
		return nil
	}
	direct := given("NO_PROXY")
	if !strings.Contains(direct, topology.Direct) {
		direct = strings.TrimPrefix(direct+","+topology.Direct, ",")
	}
	add("NO_PROXY", direct)
	return set
}
