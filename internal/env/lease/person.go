package lease

import (
	"os"
	"os/user"
)

// podNamespace is there in a pod that has an account of its own.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Person is the holder of who runs a step by hand: the user on this machine. Who
// started a Task alone is not told to its pod, so all such Tasks of a namespace
// are one holder, and each finds what another one took.
func Person() Holder {
	if _, err := os.Stat(podNamespace); err == nil {
		return Holder{ID: "tasks", Display: "tasks that were started alone"}
	}
	name, host := "somebody", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return Holder{ID: name + "@" + host, Display: name + "@" + host}
}
