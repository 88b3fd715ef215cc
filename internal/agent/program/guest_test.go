package program

import (
	"bytes"
	"strings"
	"testing"
)

func TestGuestWrongUsage(t *testing.T) {
	for _, args := range []string{"", "--dir=/x --node=2 --addresses=10.0.0.1,10.0.0.2", "--dir=/x --addresses=10.0.0.1 --idle=0s", "--dir=/x --addresses=10.0.0.1 more", "--no-such-flag"} {
		var out, errors bytes.Buffer
		if code := Main(append([]string{"mlenv-agent", "guest"}, strings.Fields(args)...), nil, &out, &errors); code != 2 || errors.Len() == 0 {
			t.Errorf("%q: exit code %d, %q; want 2 and a message", args, code, errors.String())
		}
	}
}
