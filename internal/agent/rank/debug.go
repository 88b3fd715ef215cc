package rank

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// waitListening waits until something listens on the port of loopback; false where
// ctx is done before. It does not connect: a debug server takes whoever connects
// and leaves for its debugger.
func waitListening(ctx context.Context, port int) bool {
	for ticks := time.Tick(100 * time.Millisecond); ; {
		if table, err := os.Open("/proc/net/tcp"); err == nil {
			found := listens(table, port)
			table.Close()
			if found {
				return true
			}
		}
		select {
		case <-ticks:
		case <-ctx.Done():
			return false
		}
	}
}

// listens reads the kernel's table of sockets: number, local and remote address,
// state, where 0A is listening. Addresses are in the machine's byte order.
func listens(table io.Reader, port int) bool {
	local := fmt.Sprintf("0100007F:%04X", port)
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && fields[1] == local && fields[3] == "0A" {
			return true
		}
	}
	return false
}
