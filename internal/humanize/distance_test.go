package humanize

import "testing"

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"namspace", "namespace", 1}, {"main", "mian", 2}, {"", "abc", 3}, {"tcp", "rdma", 4}} {
		if got := Distance(test.a, test.b); got != test.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"nodes", "lfs", "launcher", "timeout"}
	for word, want := range map[string]string{"nods": "nodes", "Ndoes": "nodes", "launcer": "launcher", "lr": "", "epochs": "", "": ""} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
