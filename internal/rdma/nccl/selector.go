package nccl

import (
	"fmt"
	"strconv"
	"strings"
)

// Selector is a choice of devices or interfaces, as NCCL_IB_HCA and NCCL_SOCKET_IFNAME have it:
// "mlx5", "=mlx5_6,mlx5_7:1", "^docker,lo", "^=eth0".
type Selector struct {
	// Exclude takes all but the listed.
	Exclude bool
	// Exact compares whole names. Otherwise an entry means all names that begin with it:
	// "mlx5_1" is mlx5_10 too.
	Exact   bool
	Entries []Entry
}

// Entry is a name, or the beginning of one.
type Entry struct {
	Name string
	// Port is None for any.
	Port int
}

// What NCCL has room for (MAX_IB_DEVS; struct netIf in include/utils.h). It drops the rest without a word.
const (
	maxEntries = 32
	maxName    = 63
)

// ParseSelector reads a selector as NCCL does (init.cc, parseStringList in misc/utils.cc): it
// skips empty entries, and takes what is no number after a colon as port 0. What NCCL would
// drop in silence is an error here. The empty selector chooses everything.
func ParseSelector(text string) (Selector, error) {
	var s Selector
	rest := text
	rest, s.Exclude = strings.CutPrefix(rest, "^")
	rest, s.Exact = strings.CutPrefix(rest, "=")
	for entry := range strings.SplitSeq(rest, ",") {
		name, port, hasPort := strings.Cut(entry, ":")
		if name == "" {
			continue
		}
		if len(name) > maxName {
			return Selector{}, fmt.Errorf("reading selector %q: the name %q has %d characters, want at most %d", text, name, len(name), maxName)
		}
		e := Entry{Name: name, Port: None}
		if hasPort {
			number, err := strconv.Atoi(port)
			if err != nil || number < 0 {
				return Selector{}, fmt.Errorf("reading selector %q: port %q of %s, want a whole number", text, port, name)
			}
			e.Port = number
		}
		s.Entries = append(s.Entries, e)
	}
	if len(s.Entries) > maxEntries {
		return Selector{}, fmt.Errorf("reading selector %q: %d names, want at most %d", text, len(s.Entries), maxEntries)
	}
	return s, nil
}

// ExactHCA is the NCCL_IB_HCA that chooses just these devices: "=mlx5_6,mlx5_7". With no
// device it is empty, which chooses all that are there: do not set it then.
func ExactHCA(devices ...string) string {
	s := Selector{Exact: true}
	for _, device := range devices {
		s.Entries = append(s.Entries, Entry{Name: device, Port: None})
	}
	return s.String()
}

// String is the selector as the variable's value.
func (s Selector) String() string {
	if len(s.Entries) == 0 {
		return ""
	}
	var text strings.Builder
	if s.Exclude {
		text.WriteByte('^')
	}
	if s.Exact {
		text.WriteByte('=')
	}
	for i, entry := range s.Entries {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(entry.Name)
		if entry.Port != None {
			fmt.Fprintf(&text, ":%d", entry.Port)
		}
	}
	return text.String()
}

// Matches is true where NCCL takes the port of the device (matchIfList in misc/utils.cc). For
// an interface the port is None.
func (s Selector) Matches(name string, port int) bool {
	if len(s.Entries) == 0 {
		return true
	}
	listed := false
	for _, entry := range s.Entries {
		samePort := entry.Port == None || port == None || entry.Port == port
		sameName := name == entry.Name || !s.Exact && strings.HasPrefix(name, entry.Name)
		listed = listed || samePort && sameName
	}
	return listed != s.Exclude
}
