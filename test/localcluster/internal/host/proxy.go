// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strings"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Proxies returns the variables for the machine's proxy that are set, and those for what programs reach without it, to which the cluster
// belongs.
func Proxies(getenv func(string) string) map[string]string {
	set := map[string]string{}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		if value := getenv(name); value != "" {
			set[name] = value
		}
	}
	if len(set) == 0 {
		return nil
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		set[name] = getenv(name)
		if !strings.Contains(set[name], topology.Direct) {
			set[name] = strings.TrimPrefix(set[name]+","+topology.Direct, ",")
		}
	}
	return set
}
