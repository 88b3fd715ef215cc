// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExactHCA(t *testing.T) {
	if got, want := ExactHCA("mlx5_6", "mlx5_7:1", "mlx5_10"), "=mlx5_6,mlx5_7:1,mlx5_10"; got != want {
		t.Errorf("ExactHCA = %q, want %q", got, want)
	}
}

// A job's variables override an RDMA environment's, so OverSockets must set all of them.
func TestOverSockets(t *testing.T) {
	env := map[string]string{"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_6", "NCCL_SOCKET_IFNAME": "=net1", "GLOO_SOCKET_IFNAME": "net1"}
	OverSockets(env, "eth0")
	want := map[string]string{"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "=mlx5_6", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0",
		"NCCL_NET": "Socket"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
