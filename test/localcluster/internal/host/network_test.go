// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strings"
	"testing"
)

func TestConflict(t *testing.T) {
	for name, tc := range map[string]struct{ routes, taken string }{
		"other networks": {routes: "default via 192.0.2.1 dev eth0 \n192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.2 \n" +
			"local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1 \n"},
		"of the cluster": {routes: "10.128.1.0/24 via 10.223.0.11 dev mlenv0 \n" +
			"local 10.223.0.1 dev mlenv0 table local proto kernel scope host\n"},
		"all by a VPN":    {routes: "0.0.0.0/1 via 10.8.0.1 dev tun0 \n128.0.0.0/1 via 10.8.0.1 dev tun0 \n10.0.0.0/8 via 10.8.0.1 dev tun0 \n"},
		"by a rule":       {routes: "10.0.0.0/8 dev tailscale0 table 52 \n", taken: "10.223.0.0/24"},
		"wg-quick's":      {routes: "default dev wg0 table 51820 scope link \n"},
		"same range":      {routes: "10.128.0.0/16 via 10.8.0.1 dev tun0 \n", taken: "10.128.0.0/16"},
		"part of it":      {routes: "10.223.0.128/25 dev br0 proto kernel \n", taken: "10.223.0.0/24"},
		"one address":     {routes: "10.128.7.9 via 10.8.0.1 dev tun0 \n", taken: "10.128.0.0/16"},
		"local address":   {routes: "local 10.223.0.7 dev eth1 table local proto kernel scope host src 10.223.0.7\n", taken: "10.223.0.0/24"},
		"via one of ours": {routes: "198.51.100.0/24 via 10.223.0.7 dev eth0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			err := conflict(tc.routes)
			if (err != nil) != (tc.taken != "") || err != nil && !strings.Contains(err.Error(), tc.taken+" is taken") {
				t.Errorf("got %v, want %q taken", err, tc.taken)
			}
		})
	}
}
