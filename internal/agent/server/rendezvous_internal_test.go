package server

import (
	"maps"
	"testing"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
)

func TestReadSockets(t *testing.T) {
	// Port 29500 is 733C.
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 ffff 100 0 0 10 0
   1: 0201800A:C350 0101800A:733C 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 ffff 20 4 30 10 -1
   2: 0201800A:C351 0101800A:733C 02 00000000:00000000 01:00000064 00000000  1000        0 13 1 ffff 20 4 30 10 -1
   3: 0201800A:C352 0101800A:733C 06 00000000:00000000 03:00000064 00000000  1000        0 14 1 ffff 20 4 30 10 -1
   4: 0201800A:C352 0101800A:01BB 01 00000000:00000000 03:00000064 00000000  1000        0 15 1 ffff 20 4 30 10 -1
   5: 0101800A:733C 0201800A:C350 01 00000000:00000000 00:00000000 00000000  1000        0 16 1 ffff 20 4 30 10 -1
   6: cut off
`
	got := map[string]agent.Rendezvous{}
	readSockets(table, 29500, got)
	want := map[string]agent.Rendezvous{"socket:[11]": agent.Arrived, "socket:[12]": agent.Arrived, "socket:[13]": agent.Connecting}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
