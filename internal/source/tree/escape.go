package tree

import (
	"encoding/hex"
	"fmt"
	"strings"
)

const hexDigits = "0123456789ABCDEF"

// plain says whether a byte of a name stands for itself in a manifest.
func plain(b byte) bool { return b >= ' ' && b <= '~' && b != '%' }

// Escape writes a file name, which may hold any bytes, in printable ASCII:
// other bytes, and the percent sign, become %XX.
func Escape(name string) string {
	odd := 0
	for i := range len(name) {
		if !plain(name[i]) {
			odd++
		}
	}
	if odd == 0 {
		return name
	}
	var escaped strings.Builder
	escaped.Grow(len(name) + 2*odd)
	for i := range len(name) {
		b := name[i]
		if plain(b) {
			escaped.WriteByte(b)
			continue
		}
		escaped.WriteByte('%')
		escaped.WriteByte(hexDigits[b>>4])
		escaped.WriteByte(hexDigits[b&15])
	}
	return escaped.String()
}

// Unescape undoes Escape. It refuses whatever Escape would not have written, so
// that no two spellings mean the same name.
func Unescape(escaped string) (string, error) {
	if strings.IndexByte(escaped, '%') < 0 && Escape(escaped) == escaped {
		return escaped, nil
	}
	name := make([]byte, 0, len(escaped))
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '%' {
			name = append(name, escaped[i])
			continue
		}
		if i+2 >= len(escaped) {
			return "", fmt.Errorf("unescaping name %q: cut off behind a percent sign: want %%XX", escaped)
		}
		b, err := hex.DecodeString(escaped[i+1 : i+3])
		if err != nil {
			return "", fmt.Errorf("unescaping name %q: %w: want %%XX", escaped, err)
		}
		name = append(name, b[0])
		i += 2
	}
	if want := Escape(string(name)); want != escaped {
		return "", fmt.Errorf("unescaping name %q: not how it is written: want %q", escaped, want)
	}
	return string(name), nil
}
