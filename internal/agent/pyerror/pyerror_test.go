package pyerror

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzLast reads what a rank printed: lines and the error have bounds, and the error is one of the lines.
func FuzzLast(f *testing.F) {
	f.Add([]byte("Traceback (most recent call last):\n  File \"a.py\", line 7, in f\n    f()\nValueError: bad batch\n"))
	f.Add([]byte("[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/usr/lib/python3.12/x.py\", line 1, in f\n[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory\n"))
	f.Add([]byte("  File \"a.py\", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n"))
	f.Add([]byte("10%\r20%\r\xff\n" + strings.Repeat("x", 600)))
	f.Add([]byte("Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 99999999999999999999, in f\n", 50) + "E\n"))
	f.Fuzz(func(t *testing.T, output []byte) {
		lines := Lines(output)
		for _, line := range lines {
			if len(line) > longestLine+len("…") || !utf8.ValidString(line) || strings.Contains(line, "\n") {
				t.Fatalf("line %q", line)
			}
		}
		found := Last(lines)
		if found == nil {
			return
		}
		if found.Type == "" || found.Line < 0 || len(found.Traceback) == 0 || len(found.Traceback) > longest {
			t.Fatalf("error %+v, want a type and 1 to %d lines", found, longest)
		}
		text := strings.Join(lines, "\n")
		for _, part := range []string{found.Type, found.Message, found.File} {
			if !strings.Contains(text, part) {
				t.Fatalf("%q is not in the output %q", part, text)
			}
		}
	})
}
