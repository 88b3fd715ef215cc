package attachment

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func object(name, config string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
	o.SetNamespace("default")
	o.SetName(name)
	o.SetAnnotations(map[string]string{ResourceAnnotation: "openshift.io/" + name})
	return o
}

func TestRead(t *testing.T) {
	tests := []struct{ name, config, want string }{
		{"whereabouts", `{"type":"sriov","ipam":{"type":"whereabouts","range":"10.0.103.0/24"}}`, "10.0.103.0 10.0.103.255"},
		{"whereabouts, cut", `{"ipam":{"range":"10.0.103.0/24","range_start":"10.0.103.10","range_end":"10.0.103.20"}}`, "10.0.103.10 10.0.103.20"},
		{"whereabouts, from to", `{"ipam":{"range":"10.0.103.10-10.0.103.20/24"}}`, "10.0.103.10 10.0.103.20"},
		{"whereabouts, several", `{"ipam":{"ipRanges":[{"range":"10.0.1.0/30"},{"range":"fd00::/126"}]}}`, "10.0.1.0 10.0.1.3 fd00:: fd00::3"},
		{"host-local in a list", `{"plugins":[{"ipam":{"ranges":[[{"subnet":"10.1.0.0/16","rangeStart":"10.1.2.3"}]]}},{"type":"tuning"}]}`, "10.1.2.3 10.1.255.255"},
		{"dhcp", `{"ipam":{"type":"dhcp"}}`, ""},
		{"a file of the node", ``, ""},
		{"no JSON", `{`, "reading attachment default/x: its spec.config: unexpected end of JSON input"},
		{"no subnet", `{"ipam":{"range":"10.0.103.0"}}`, `reading attachment default/x: range "10.0.103.0": want a subnet, as in 10.0.103.0/24`},
		{"no address", `{"ipam":{"range":"10.0.103.0/24","range_end":"20"}}`, `reading attachment default/x: range "10.0.103.0/24": its bound "20" is no address`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, err := Read(object("x", test.config))
			var got []string
			for _, r := range d.Ranges {
				got = append(got, r.First.String(), r.Last.String())
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if d.Resource != "openshift.io/x" {
				t.Errorf("resource %q", d.Resource)
			}
		})
	}
}

func TestOverlaps(t *testing.T) {
	var definitions []Definition
	for name, config := range map[string]string{
		"a": `{"ipam":{"range":"10.0.103.0/24"}}`, "b": `{"ipam":{"range":"10.0.103.128/25"}}`, "c": `{"ipam":{"range":"10.0.104.0/24"}}`, "d": `{}`,
	} {
		d, err := Read(object(name, config))
		if err != nil {
			t.Fatal(err)
		}
		definitions = append(definitions, d)
	}
	found := Overlaps(definitions)
	if len(found) != 1 {
		t.Fatalf("%v, want one", found)
	}
	got := found[0].String()
	for _, want := range []string{"default/a (10.0.103.0/24)", "default/b (10.0.103.128/25)", "give the same addresses"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
