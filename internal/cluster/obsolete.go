// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Obsolete returns values of the earlier scripts' files, which had no keys for attachments, and what replaces them. Such a file is valid,
// but its pods have the rails of host devices at most: it expects the interfaces of attachments, and lists none.
func (f *File) Obsolete() field.ErrorList {
	rdma, path := f.Network.RDMA, field.NewPath("network", "rdma")
	if !rdma.Enabled || rdma.Plugged() || len(rdma.Interfaces) == 0 {
		return nil
	}
	return append(field.ErrorList{field.Invalid(path.Child("interfaces"), strings.Join(rdma.Interfaces, ","),
		"only network attachments create these interfaces, and the file lists none; with SR-IOV list network.rdma.attachments and "+
			"network.rdma.resources, as in clusters/barcelona.yaml; with host devices leave interfaces out")},
		append(
			invalidIf(len(rdma.Devices) > 0, path.Child("devices"), strings.Join(rdma.Devices, ","),
				"with SR-IOV leave it out; the names changed with maintenance, and devices are detected"),
			invalidIf(f.Security.RequiresPrivilegedSCC, field.NewPath("security", "requires_privileged_scc"), true,
				"is for host devices; with SR-IOV want false, and security.scc with a constraint that allows IPC_LOCK, as in scc: nccl-scc")...)...)
}
