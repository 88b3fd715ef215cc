// SPDX-License-Identifier: Apache-2.0

// Package plugin advertises the stand-in NICs to a real kubelet, their virtual functions as the SR-IOV network device plugin does, and
// cards that pods share as the RDMA shared device plugin does. It keeps their state.
package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/deviceplugin"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// Config has the folders of the plugin's node.
type Config struct {
	Node topology.Netns
	// GPUDir contains the state of the node's GPUs.
	GPUDir string
	// Dir is the folder of the node's RDMA devices: their tree, device files, and the state file, which the plugin
	// watches for changes.
	Dir string
}

// infoDir is the folder in which Multus reads information about allocated devices
// (k8snetworkplumbingwg/device-info-spec).
const infoDir = "/run/k8s.cni.cncf.io/devinfo/dp"

// node is the state that the plugins of a node's NICs share.
type node struct {
	config Config

	mu    sync.Mutex
	state rdma.State
}

// Run serves a plugin for each NIC until the context ends. If the layout changes, it restarts them.
func Run(ctx context.Context, config Config) error {
	for {
		layout, stop := context.WithCancel(ctx)
		err := run(layout, stop, config)
		stop()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// run serves the plugins of one layout. It stops when the state has another layout.
func run(ctx context.Context, stop func(), config Config) error {
	n := &node{config: config}
	if err := n.reload(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(n.devices(), 0o755); err != nil {
		return err
	}
	if err := deviceplugin.MakeFile(n.devices(), "rdma_cm"); err != nil {
		return err
	}
	functions := n.state.Layout.Functions(config.Node.Name)
	if err := n.assignAddresses(ctx, functions); err != nil {
		return err
	}
	for _, f := range functions {
		for _, file := range f.Files() {
			if err := deviceplugin.MakeFile(n.devices(), file); err != nil {
				return err
			}
		}
	}
	var plugins []deviceplugin.Plugin
	add := func(resource string, server api.DevicePluginServer) {
		plugins = append(plugins, deviceplugin.Plugin{
			Resource: resource, Socket: strings.ReplaceAll(resource, "/", "_") + ".sock", Server: server,
		})
	}
	all := &sharedPlugin{node: n}
	for _, nic := range rdma.NICs {
		p := &plugin{node: n, nic: nic}
		for _, f := range functions {
			switch {
			case f.NIC != nic:
			case f.Number > 0:
				p.functions = append(p.functions, f)
			case n.state.Layout.Form == rdma.Shared:
				all.functions = append(all.functions, f)
			}
		}
		if len(p.functions) > 0 {
			add(nic.Resource(), p)
		}
	}
	if len(all.functions) > 0 {
		add(rdma.SharedResource, all)
	}
	return deviceplugin.Run(ctx, plugins, filepath.Join(config.Dir, rdma.StateFile), func() error {
		before := n.state.Layout
		err := n.reload(ctx)
		if !reflect.DeepEqual(before, n.state.Layout) {
			stop()
		}
		return err
	})
}

// assignAddresses gives the NICs' own interfaces their addresses if the form is rdma.HostDevices. Otherwise it removes
// the addresses.
func (n *node) assignAddresses(ctx context.Context, functions []rdma.Function) error {
	commands := [][]string{}
	for _, nic := range rdma.NICs {
		commands = append(commands, []string{"flush", "dev", nic.Name})
	}
	for _, f := range functions {
		if n.state.Layout.Form == rdma.HostDevices && slices.Contains(rdma.NICs, f.NIC) {
			commands = append(commands, []string{"add", f.HostAddress().String(), "dev", f.NIC.Name})
		}
	}
	for _, command := range commands {
		if out, err := exec.CommandContext(ctx, "ip", append([]string{"addr"}, command...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip addr %s: %w: %s", strings.Join(command, " "), err, out)
		}
	}
	return nil
}

func (n *node) devices() string { return filepath.Join(n.config.Dir, "dev") }

// reload updates the tree and the links to the state.
func (n *node) reload(ctx context.Context) error {
	state, err := rdma.ReadState(n.config.Dir)
	if err != nil {
		return err
	}
	gpus, err := gpu.ReadState(n.config.GPUDir)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.state = state
	n.mu.Unlock()
	if err := rdma.WriteTree(n.config.Dir, n.config.Node.Name, gpus, state); err != nil {
		return err
	}
	for _, nic := range rdma.NICs {
		cable := "up"
		if state.Faults[nic.Name] == rdma.Down {
			cable = "down"
		}
		// Set the switch's end of the link, as if the cable were pulled: the NIC and the interfaces of pods lose their
		// carrier.
		out, err := exec.CommandContext(ctx, "ip", "-n", topology.Fabric().SystemName(), "link", "set", n.config.Node.Port(nic.Name),
			cable).CombinedOutput()
		if err != nil {
			return fmt.Errorf("setting the link of %s %s: %w: %s", nic.Name, cable, err, out)
		}
	}
	return nil
}

// plugin serves the resource of one NIC.
type plugin struct {
	api.UnimplementedDevicePluginServer
	*node
	nic       rdma.NIC
	functions []rdma.Function
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	answer := &api.ListAndWatchResponse{}
	for _, f := range p.functions {
		numa := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(f.NIC.NUMA)}}}
		answer.Devices = append(answer.Devices, &api.Device{ID: f.Address(), Health: api.Healthy, Topology: numa})
	}
	// The real plugin reports a function as healthy if it exists, in any state of its link.
	if err := stream.Send(answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// GetPreferredAllocation prefers the first functions, so that the tests always get the same ones.
func (p *plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (
	*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, c := range request.ContainerRequests {
		chosen := slices.Clone(c.MustIncludeDeviceIDs)
		for _, id := range slices.Sorted(slices.Values(c.AvailableDeviceIDs)) {
			if len(chosen) < int(c.AllocationSize) && !slices.Contains(chosen, id) {
				chosen = append(chosen, id)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: chosen})
	}
	return answer, nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	p.mu.Lock()
	fault := p.state.Faults[p.nic.Name]
	p.mu.Unlock()
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		functions, err := p.find(container.DevicesIds)
		if err != nil {
			return nil, err
		}
		variables, err := rdma.Variables(p.nic.Resource(), functions, fault)
		if err != nil {
			return nil, err
		}
		for _, f := range functions {
			if err := p.saveInfo(f); err != nil {
				return nil, err
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, p.give(functions, variables))
	}
	return answer, nil
}

func (p *plugin) find(addresses []string) ([]rdma.Function, error) {
	var found []rdma.Function
	for _, address := range slices.Sorted(slices.Values(addresses)) {
		i := slices.IndexFunc(p.functions, func(f rdma.Function) bool { return f.Address() == address })
		if i < 0 {
			return nil, fmt.Errorf("allocating %s: the kubelet asked for %s, which this node does not have", p.nic.Resource(), address)
		}
		found = append(found, p.functions[i])
	}
	return found, nil
}

// give returns what a container gets with the functions.
func (n *node) give(functions []rdma.Function, variables map[string]string) *api.ContainerAllocateResponse {
	response := &api.ContainerAllocateResponse{Envs: variables, Mounts: Tree(n.config.Dir, n.state.Layout.Form),
		Devices: []*api.DeviceSpec{n.device("rdma_cm")}}
	response.Envs[rdma.SysRootVariable] = rdma.SysRoot
	for _, f := range functions {
		for _, file := range f.Files() {
			response.Devices = append(response.Devices, n.device(file))
		}
		response.Mounts = append(response.Mounts, mount(filepath.Join(n.devices(), f.Uverbs()), "dev/infiniband/"+f.Uverbs()))
	}
	return response
}

func (n *node) device(name string) *api.DeviceSpec {
	return &api.DeviceSpec{HostPath: filepath.Join(n.devices(), name), ContainerPath: "/dev/infiniband/" + name, Permissions: "rw"}
}

// Tree returns the mounts of the visible parts of the tree, and of the program that measures the devices. The kubelet
// mounts each only once, even for several resources.
func Tree(dir string, form rdma.Form) []*api.Mount {
	mounts := []*api.Mount{{HostPath: topology.State("in-pod", "ib_write_bw"), ContainerPath: "/usr/bin/ib_write_bw", ReadOnly: true}}
	visible := rdma.Visible(dir, form)
	for _, name := range slices.Sorted(maps.Keys(visible)) {
		mounts = append(mounts, mount(visible[name], name))
	}
	return mounts
}

func mount(from, to string) *api.Mount {
	return &api.Mount{HostPath: from, ContainerPath: filepath.Join(rdma.SysRoot, to), ReadOnly: true}
}

// saveInfo writes the device information that Multus adds to the pod's network status.
func (p *plugin) saveInfo(f rdma.Function) error {
	content, err := json.Marshal(map[string]any{
		"type": "pci", "version": "1.1.0",
		"pci": map[string]string{"pci-address": f.Address(), "rdma-device": f.Device()},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(infoDir, 0o755); err != nil {
		return err
	}
	name := strings.ReplaceAll(p.nic.Resource(), "/", "-") + "-" + f.Address() + "-device.json"
	return os.WriteFile(filepath.Join(infoDir, name), content, 0o644)
}
