// SPDX-License-Identifier: Apache-2.0

package cluster

import "testing"

// FuzzBandwidth: an accepted bandwidth is in bounds, and parsing its text gives the same bandwidth.
func FuzzBandwidth(f *testing.F) {
	for _, text := range []string{"200GB/s", "194.6 GB/s", "0.1GB/s", "1.23456789GB/s", "100000GB/s", "100001GB/s", "12Gb/s", "1e9GB/s",
		"-1GB/s", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b, again Bandwidth
		if b.UnmarshalText([]byte(text)) != nil {
			return
		}
		if b < 0 || b > maxBandwidth*GBps {
			t.Fatalf("%q is %d bytes per second", text, b)
		}
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%q is %d bytes per second, its text %s is %d, %v", text, b, b, again, err)
		}
	})
}

// FuzzQuantity: parsing the text of an accepted quantity gives the same quantity.
func FuzzQuantity(f *testing.F) {
	for _, text := range []string{"128Gi", "1T", "32", "500m", "0", "128GB", "1e3", "1E-999999999", "9999999999999999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var q, again Quantity
		if q.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(q.String())); err != nil || again.Cmp(q.Quantity) != 0 {
			t.Errorf("%q is %s, whose text is %s, %v", text, q.String(), again.String(), err)
		}
	})
}
