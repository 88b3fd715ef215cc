package nccl

import "github.com/ml-dev-env/ml-dev-env/internal/fail"

type explanation struct {
	consequence bool
	cause, fix  string
}

// explanations are those of all reasons. Memlock and IOMMU are two failures with two cures, as seen on H100 nodes with
// ConnectX-7 cards.
var explanations = map[fail.Reason]explanation{
	MemoryLockLimit: {
		cause: "an RDMA device must lock the memory that it uses, and the process has locked as much as its limit (ulimit -l) allows while IPC_LOCK is not effective",
		fix:   "make IPC_LOCK effective (root or a container that runs as root, under an SCC that allows it) or raise the limit: in CRI-O default_ulimits = [\"memlock=-1:-1\"]; see it by: grep -e 'Max locked' /proc/1/limits; grep CapEff /proc/1/status (bit 14 is IPC_LOCK)",
	},
	GPUMemoryRefused: {
		cause: "the device could not register the memory of the GPU: nvidia_peermem is not loaded on the node and DMA-BUF is off or not supported by driver and kernel",
		fix:   "load nvidia_peermem (GPU operator: driver.rdma.enabled=true) or, with the open driver and Linux 5.12 or later, set NCCL_DMABUF_ENABLE=1; see it by: ls /sys/module/nvidia_peermem; with NCCL_NET_GDR_LEVEL=LOC it runs, slower, through host memory",
	},
	DMARefused: {
		cause: "the node stopped its own device from reading or writing memory that was registered: the IOMMU translates addresses, or PCIe ACS redirects traffic between GPU and device. It is not the memlock limit, which fails at registration",
		fix:   "boot the node with iommu=pt (a MachineConfig; it reboots the pool); see it by: grep -o 'iommu=[a-z]*' /proc/cmdline; if the node has it already, turn off ACS on the PCIe switches; with NCCL_NET_GDR_LEVEL=LOC it runs if only the way to the GPU is barred",
	},
	PeerDMARefused: {
		cause: "the node that received was not let into its own memory by the IOMMU or PCIe ACS, or it had already given the memory up",
		fix:   "look at the peer's own log for an earlier error; if it has none: boot the peer's node with iommu=pt and turn off ACS there; see it by: grep -o 'iommu=[a-z]*' /proc/cmdline",
	},
	GPUPeerAccessOff: {
		cause: "GPUs of the node cannot reach each other over PCIe or NVLink: PCIe ACS, the IOMMU, or a hardware fault; they go through shared memory instead",
		fix:   "compare nvidia-smi topo -p2p r on this node and on a good one; turn off ACS on the PCIe switches, or have the node looked at",
	},
	NoSocketInterface: {
		cause: "no interface of the pod matches NCCL_SOCKET_IFNAME, so ranks cannot find each other; most often the network attachments (net1 and so on) are not in the pod",
		fix:   "compare NCCL_SOCKET_IFNAME with: ip -brief address; attachments are asked for by the pod's annotation k8s.v1.cni.cncf.io/networks, and what was given is in k8s.v1.cni.cncf.io/network-status",
	},
	VerbsLibraryMissing: {
		cause: "the image has no libibverbs, without which NCCL cannot use RDMA",
		fix:   "install rdma-core (libibverbs1, ibverbs-providers) in the image",
	},
	DeviceUnavailable: {
		cause: "the RDMA device is listed in /sys but cannot be opened or does not answer: its file in /dev/infiniband is not in the container, or the device is broken",
		fix:   "see ls -l /dev/infiniband in the pod; ask for the device's resource (openshift.io/...) in the cluster file's network.rdma.resources, or run privileged if host devices are used",
	},
	NetworkMissing: {
		cause: "NCCL_NET or NCCL_NET_PLUGIN names a network that NCCL cannot start",
		fix:   "unset NCCL_NET and NCCL_NET_PLUGIN, or install the plugin; the lines before this one name what each network lacked",
	},
	GIDUnusable: {
		cause: "the port has no valid address at the GID index that is used: NCCL_IB_GID_INDEX forces one that is empty or of another kind here, or the interface has no IPv4 address",
		fix:   "unset NCCL_IB_GID_INDEX, so that NCCL chooses RoCE v2 over IPv4 by itself; mlenv rdma prints the table of GIDs; an empty one means that the port's interface has no address",
	},
	GIDChanged: {
		cause: "the address of a port changed during the run: its interface was set down and up, or the attachment got another address",
		fix:   "find what changed the interface: oc get events and dmesg of the node; start the run again",
	},
	MTUMismatch: {
		cause: "ports that talk to each other have different MTUs, of the port itself or of its interface (RoCE uses the next size below the interface's)",
		fix:   "give all attachments and switch ports the same MTU (9000 gives RoCE 4096); see it by: ip link show and the active_mtu of ibv_devinfo",
	},
	LinkTypesMixed: {
		cause: "NCCL paired an InfiniBand port with an Ethernet (RoCE) port",
		fix:   "choose the ports of one kind by NCCL_IB_HCA, exactly: =mlx5_6,mlx5_7",
	},
	DevicesMismatched: {
		cause: "the nodes have different RDMA devices at the same place, or a different number of them merged to one",
		fix:   "have the nodes list their devices alike: the cards in the same slots, and names by PCI address (NAME_PCI of rdma-core's rename rule). An order in NCCL_IB_HCA has no effect, but it can leave out devices that differ; NCCL_IB_MERGE_NICS=0 merges none",
	},
	PortDown: {
		cause: "the port lost its link: cable, transceiver, switch port, or the interface was set down",
		fix:   "see it by: ibstat or rdma link on the node, and the switch port's counters; until it is mended leave the device out of NCCL_IB_HCA on all nodes",
	},
	DeviceFatal: {
		cause: "the RDMA device reported an error from which it does not recover by itself",
		fix:   "see dmesg of the node for mlx5_core; drain the node and reset or replace the card",
	},
	VerbsFailed: {
		cause: "a call to the RDMA library failed",
		fix:   "see dmesg of the node for mlx5_core, and try the device by ib_write_bw between the two nodes",
	},
	RailUnreachable: {
		cause: "there is no way from this port to the peer's address: the two are in subnets without a route between them, the peer's address does not answer, or two pods have the same address",
		fix:   "for rails in subnets of their own set NCCL_CROSS_NIC=0; try: ping -I net1 with the peer's address of the same rail; attachments of one subnet must not have overlapping ranges",
	},
	RailsCrossed: {
		cause: "a port of one subnet was connected to a port of another, and no answer came: there is no route between the rails",
		fix:   "set NCCL_CROSS_NIC=0; if it is 0, one node lists the devices in another order, and an order in NCCL_IB_HCA has no effect: put the cards into the same slots, name them by PCI address (NAME_PCI of rdma-core's rename rule), add routes between the rails, or name in NCCL_IB_HCA only rails at the same place on all nodes",
	},
	RetryExceeded: {
		cause: "the peer's port did not acknowledge anything: the rail is down at the other end, a firewall or switch drops RoCE (UDP 4791), two pods have the same address (overlapping ranges), the MTU is smaller on the way, or the peer's process has ended",
		fix:   "look whether the peer failed first; then try ping -I net1 -M do -s 4096 with the peer's address of this rail, and arping -D for a double address; on a congested fabric raise NCCL_IB_TIMEOUT (22)",
	},
	ReceiverNotReady: {
		cause: "the peer's port works, but its process posted no memory to receive into: it hangs or is stopped",
		fix:   "look at the peer's log and stack (py-spy dump) at that time",
	},
	TransferFailed: {
		cause: "a transfer over RDMA failed; the status in the line is libibverbs' enum ibv_wc_status",
		fix:   "look for an earlier error on either node, and at dmesg for mlx5_core",
	},
	TransferFlushed: {
		consequence: true,
		cause:       "an earlier transfer of the same connection failed, and this one was thrown away",
		fix:         "look for the first error on either node",
	},
	NameUnresolved: {
		cause: "the name of the master or of a peer could not be resolved",
		fix:   "see it by: getent hosts NAME in the pod; the headless service must publish addresses that are not ready, and the pod's name must be in its domain",
	},
	ConnectionRefused: {
		cause: "no process listens at the peer's address: the peer has ended or not started, or it listens on another interface",
		fix:   "look whether that rank failed first; NCCL_SOCKET_IFNAME must name interfaces of one network on all nodes",
	},
	PeerUnreachable: {
		cause: "packets to the peer's address get lost: a NetworkPolicy or firewall, an interface that the peer does not share, or two pods with the same address",
		fix:   "from this pod try the address in the line: nc -vz ADDRESS PORT; oc get networkpolicy; set NCCL_SOCKET_IFNAME=eth0, the pod network, for the bootstrap",
	},
	ConnectionRetried: {
		cause: "a peer does not answer yet: it has not begun, or cannot be reached",
		fix:   "if it continues, look at the peer's log; without one, treat the peer as unreachable: nc -vz ADDRESS PORT from this pod",
	},
	ForeignConnection: {
		cause: "something that is no rank of this run connected to a port of NCCL's: a port scanner, a service mesh's sidecar, or a rank that was left over from an earlier run",
		fix:   "take the pods out of the mesh (sidecar.istio.io/inject: \"false\") and of scans, and see that no earlier run is alive",
	},
	PeerGone: {
		consequence: true,
		cause:       "the peer closed its connection because it ended",
		fix:         "look at the log of that peer: its error came first",
	},
	SharedMemoryFull: {
		cause: "/dev/shm has no room for the buffers between the ranks of a node",
		fix:   "see it by: df -h /dev/shm; mount an emptyDir of medium Memory there, and do not fill it by data loaders",
	},
	TooManyFiles: {
		cause: "the process has as many files and sockets open as its limit allows",
		fix:   "raise it before the ranks start: ulimit -n 65536; NCCL needs several sockets for each peer and channel",
	},
	VersionMismatch: {
		cause: "the ranks run different versions of NCCL",
		fix:   "run one image on all nodes, and look for a libnccl that pip installed over the image's: pip list | grep nccl",
	},
	DuplicateGPU: {
		cause: "two ranks of the node use the same GPU",
		fix:   "give each rank its own before the first collective: torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))",
	},
	CollectiveMismatch: {
		cause: "the ranks did not call the same collective with the same size at the same time, or have different NCCL_ALGO or NCCL_PROTO",
		fix:   "set TORCH_DISTRIBUTED_DEBUG=DETAIL: it names the rank that differs",
	},
	CollectiveTimeout: {
		consequence: true,
		cause:       "a collective did not complete in time: another rank ended, or a rank or the network hangs",
		fix:         "look for the rank that has no such line, and for the first error of all",
	},
	CUDAFailed: {
		cause: "a call to CUDA failed; the words in quotation marks are CUDA's",
		fix:   "see nvidia-smi and dmesg of the node for Xid; 'out of memory' there is the GPU's",
	},
	SystemError: {
		consequence: true,
		cause:       "ncclSystemError stands for any call to the system or a library that failed",
		fix:         "the line after \"Last error:\" and NCCL's warnings name it; run with NCCL_DEBUG=INFO if there are none",
	},
	RemoteError: {
		consequence: true,
		cause:       "another process ended, or the network failed",
		fix:         "look at the other ranks: the error of the first one came first",
	},
	SocketsInsteadOfRDMA: {
		cause: "NCCL chose sockets",
		fix:   "the lines NET/IB of the log show what it lacked; mlenv rdma shows devices, ports, memlock and capabilities",
	},
	HostMemoryInsteadOfGPU: {
		cause: "NCCL copies each message through the memory of the host",
		fix:   "load nvidia_peermem or set NCCL_DMABUF_ENABLE=1; if GPU and device are far apart, set NCCL_NET_GDR_LEVEL=SYS; mlenv rdma shows distances and both ways",
	},
	NoRDMADevice: {
		cause: "NCCL found no RDMA device with an active port that it was allowed to use: the pod was given none, the ports are down, or NCCL_IB_HCA names others",
		fix:   "compare NCCL_IB_HCA with ls /sys/class/infiniband and the ports' state; leave it unset to have NCCL take all",
	},
	DeviceNotUsed: {
		cause: "NCCL does not list a device that the node has: its port is not active, or NCCL_IB_HCA does not name it",
		fix:   "see its port by: cat /sys/class/infiniband/DEVICE/ports/1/state; it must be ACTIVE",
	},
	SettingChanged: {
		cause: "the program, its image or /etc/nccl.conf sets the variable itself",
		fix:   "take it out of the script (os.environ, shell exports), of the image and of /etc/nccl.conf; an intended override belongs into the cluster file",
	},
}
