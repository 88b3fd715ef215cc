package lease

import (
	"os"
	"os/user"
)

// Person is the holder of who runs a step by hand: the user on this machine.
func Person() Holder {
	name, host := "somebody", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return Holder{ID: name + "@" + host, Display: name + "@" + host}
}
