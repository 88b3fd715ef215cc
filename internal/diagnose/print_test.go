package diagnose

import (
	"fmt"
	"sort"
	"testing"
)

func TestPrint(t *testing.T) {
	m := snapshots()
	var names []string
	for n := range m {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Println("==", n)
		for _, f := range Explain(m[n], now) {
			fmt.Printf("  %s final=%v %s since %s\n     SEEN %s\n     NEXT %s\n", f.Reason, f.Final, f.Object, age(f.Since, now), f.Seen, f.Next)
		}
		for _, l := range Progress(m[n], now) {
			fmt.Println("   >", l)
		}
	}
}
