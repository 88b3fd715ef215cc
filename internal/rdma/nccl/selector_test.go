package nccl

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExactHCA(t *testing.T) {
	for _, test := range []struct {
		devices []string
		want    string
	}{
		{nil, ""},
		{[]string{"mlx5_6"}, "=mlx5_6"},
		{[]string{"mlx5_6", "mlx5_7", "mlx5_10"}, "=mlx5_6,mlx5_7,mlx5_10"},
	} {
		if got := ExactHCA(test.devices...); got != test.want {
			t.Errorf("ExactHCA(%v) = %q, want %q", test.devices, got, test.want)
		}
	}
}

func TestParseSelector(t *testing.T) {
	for _, test := range []struct {
		text string
		want Selector
		// again is how it is written anew, where that differs.
		again string
	}{
		{"", Selector{}, ""},
		{"mlx5", Selector{Entries: []Entry{{"mlx5", None}}}, ""},
		{"=mlx5_6,mlx5_7:1", Selector{Exact: true, Entries: []Entry{{"mlx5_6", None}, {"mlx5_7", 1}}}, ""},
		{"^lo,docker0", Selector{Exclude: true, Entries: []Entry{{"lo", None}, {"docker0", None}}}, ""},
		{"^=eth0", Selector{Exclude: true, Exact: true, Entries: []Entry{{"eth0", None}}}, ""},
		{"a,,b,", Selector{Entries: []Entry{{"a", None}, {"b", None}}}, "a,b"},
		// The second sign is part of a name to NCCL too: it is no list of two exact names.
		{"=mlx5_6,=mlx5_7", Selector{Exact: true, Entries: []Entry{{"mlx5_6", None}, {"=mlx5_7", None}}}, ""},
	} {
		got, err := ParseSelector(test.text)
		if err != nil {
			t.Errorf("ParseSelector(%q): %v", test.text, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("ParseSelector(%q): (-want +got)\n%s", test.text, diff)
		}
		want := test.again
		if want == "" {
			want = test.text
		}
		if got.String() != want {
			t.Errorf("ParseSelector(%q).String() = %q, want %q", test.text, got, want)
		}
	}
}

func TestParseSelectorRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"mlx5_6:one":                         `port "one" of mlx5_6, want a whole number`,
		"mlx5_6:-1":                          `port "-1" of mlx5_6, want a whole number`,
		strings.Repeat("x", 64):              "64 characters, want at most 63",
		"=" + strings.Repeat("mlx5_6,", 33):  "33 names, want at most 32",
		"mlx5_6," + strings.Repeat("y", 100): "100 characters, want at most 63",
	} {
		if _, err := ParseSelector(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSelector(%q): %v, want %q", text, err, want)
		}
	}
}

func TestSelectorMatches(t *testing.T) {
	for _, test := range []struct {
		selector, name string
		port           int
		want           bool
	}{
		{"mlx5_1", "mlx5_1", 1, true},
		{"mlx5_1", "mlx5_10", 1, true},
		{"=mlx5_1", "mlx5_10", 1, false},
		{"=mlx5_1", "mlx5_1", 1, true},
		{"=mlx5_1:2", "mlx5_1", 1, false},
		{"=mlx5_1:2", "mlx5_1", None, true},
		{"^mlx5_1", "mlx5_10", 1, false},
		{"^=mlx5_1", "mlx5_10", 1, true},
		{"^lo,docker", "eth0", None, true},
		{"^lo,docker", "docker0", None, false},
		{"", "anything", 1, true},
	} {
		s, err := ParseSelector(test.selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Matches(test.name, test.port); got != test.want {
			t.Errorf("%q matches %s:%d: %v, want %v", test.selector, test.name, test.port, got, test.want)
		}
	}
}
