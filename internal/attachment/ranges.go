package attachment

import "net/netip"

// Range is addresses from First to Last, both included.
type Range struct {
	// Text is how the attachment writes it.
	Text        string
	First, Last netip.Addr
}

// overlaps is true where an address is in both.
func (r Range) overlaps(other Range) bool {
	return r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}

// Overlap is two attachments of a pod that may give the same address. With two nodes
// that can go well; with more, two pods had one address, and the ranks hung. Nor can
// the rails be told apart by their subnets.
type Overlap struct {
	A, B           string
	RangeA, RangeB Range
}

// String names both.
func (o Overlap) String() string {
	return "attachments " + o.A + " (" + o.RangeA.Text + ") and " + o.B + " (" + o.RangeB.Text + ") give the same addresses"
}

// Overlaps finds all pairs among the attachments of one pod.
func Overlaps(definitions []Definition) []Overlap {
	var found []Overlap
	for i, a := range definitions {
		for _, b := range definitions[i+1:] {
			if o, ok := overlap(a, b); ok {
				found = append(found, o)
			}
		}
	}
	return found
}

func overlap(a, b Definition) (Overlap, bool) {
	for _, ra := range a.Ranges {
		for _, rb := range b.Ranges {
			if ra.overlaps(rb) {
				return Overlap{A: a.Full(), B: b.Full(), RangeA: ra, RangeB: rb}, true
			}
		}
	}
	return Overlap{}, false
}
