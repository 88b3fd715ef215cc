// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	const least = "cluster: {name: a, api: a.example.com, namespace: ns}\nstorage: {class_rwo: b}\n"
	for text, want := range map[string]time.Duration{
		"": 2 * time.Hour, "development: {idle_timeout: 90m}\n": 90 * time.Minute, "development: {idle_timeout: 0}\n": 0,
		"development: {idle_timeout: 1h30m}\n": 90 * time.Minute,
	} {
		file, err := Load("a.yaml", []byte(least+text))
		if got := time.Duration(file.Development.IdleTimeout); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	for text, valid := range map[string]bool{"10m": true, "1h": true, "61m": false, "500ms": false} {
		if _, err := Load("a.yaml", []byte(least+"nodes: {stop_grace: "+text+"}\n")); (err == nil) != valid {
			t.Errorf("nodes.stop_grace %s: %v, want it valid: %t", text, err, valid)
		}
	}
	for _, text := range []string{"2", "-1h", "two hours"} {
		_, err := Load("a.yaml", []byte(least+"development: {idle_timeout: "+text+"}\n"))
		if err == nil || !strings.Contains(err.Error(), "development.idle_timeout") ||
			!strings.Contains(err.Error(), "want a duration such as 2h") {
			t.Errorf("%q: %v, want what is allowed", text, err)
		}
	}
}
