// SPDX-License-Identifier: Apache-2.0

// Package plugin advertises the stand-in GPUs to a real kubelet, as NVIDIA's
// device plugin does.
package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/deviceplugin"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	rdmaplugin "github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma/plugin"
)

// Resource is the resource name that pods request.
const Resource = "nvidia.com/gpu"

// Config has the folders and programs of the plugin's node.
type Config struct {
	// StateDir is the folder of gpus.json, which the plugin watches for changes.
	StateDir string
	// DeviceDir is the folder in which the plugin creates device files.
	DeviceDir string
	// RDMADir is the folder of the node's stand-in RDMA devices.
	RDMADir string
	// SMI is the stand-in nvidia-smi that containers get.
	SMI string
}

type plugin struct {
	api.UnimplementedDevicePluginServer
	config Config

	mu      sync.Mutex
	gpus    []gpu.GPU
	changed chan struct{} // closed and replaced when gpus changes
}

// Run serves the plugin until the context ends.
func Run(ctx context.Context, config Config) error {
	p := &plugin{config: config, changed: make(chan struct{})}
	if err := p.reload(); err != nil {
		return err
	}
	plugins := []deviceplugin.Plugin{{Resource: Resource, Socket: "nvidia-gpu.sock", Server: p}}
	return deviceplugin.Run(ctx, plugins, filepath.Join(config.StateDir, gpu.StateFile), p.reload)
}

func (p *plugin) reload() error {
	gpus, err := gpu.ReadState(p.config.StateDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.config.DeviceDir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"nvidiactl", "nvidia-uvm"} {
		if err := deviceplugin.MakeFile(p.config.DeviceDir, name); err != nil {
			return err
		}
	}
	for _, g := range gpus {
		if err := deviceplugin.MakeFile(p.config.DeviceDir, fmt.Sprintf("nvidia%d", g.Index)); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gpus = gpus
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		changed := p.changed
		answer := &api.ListAndWatchResponse{}
		for _, g := range p.gpus {
			health := api.Healthy
			if g.Fault.Kind == gpu.Xid {
				health = api.Unhealthy
			}
			answer.Devices = append(answer.Devices, &api.Device{ID: g.UUID, Health: health})
		}
		p.mu.Unlock()
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := &api.AllocateResponse{}
	nics, err := rdma.ReadState(p.config.RDMADir)
	if err != nil {
		return nil, err
	}
	for _, container := range request.ContainerRequests {
		response := &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
			Mounts: []*api.Mount{
				{HostPath: p.config.SMI, ContainerPath: "/usr/bin/nvidia-smi", ReadOnly: true},
				{HostPath: p.config.StateDir, ContainerPath: gpu.StateDir, ReadOnly: true},
			},
			Devices: []*api.DeviceSpec{p.device("nvidiactl"), p.device("nvidia-uvm")},
		}
		if nics.Layout.Form == rdma.HostDevices {
			response.Envs[rdma.SysRootVariable] = rdma.SysRoot
			response.Mounts = append(response.Mounts, rdmaplugin.Tree(p.config.RDMADir, rdma.HostDevices)...)
		}
		for _, id := range container.DevicesIds {
			g, ok := p.find(id)
			if !ok {
				return nil, fmt.Errorf("allocating GPUs: the kubelet asked for %s, which this node does not have", id)
			}
			if g.Fault.Kind != gpu.Missing {
				response.Devices = append(response.Devices, p.device(fmt.Sprintf("nvidia%d", g.Index)))
				response.Mounts = append(response.Mounts, p.driverFolder(g))
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, response)
	}
	return answer, nil
}

// driverFolder returns the mount of the GPU's folder in /proc/driver/nvidia, which shows a container only its own GPUs.
// Here the folder is in the tree of the stand-in RDMA devices.
func (p *plugin) driverFolder(g gpu.GPU) *api.Mount {
	const folder = "proc/driver/nvidia/gpus"
	return &api.Mount{
		HostPath:      filepath.Join(rdma.Root(p.config.RDMADir), folder, rdma.PCIAddress(g)),
		ContainerPath: filepath.Join(rdma.SysRoot, folder, rdma.PCIAddress(g)),
		ReadOnly:      true,
	}
}

func (p *plugin) find(uuid string) (gpu.GPU, bool) {
	for _, g := range p.gpus {
		if g.UUID == uuid {
			return g, true
		}
	}
	return gpu.GPU{}, false
}

func (p *plugin) device(name string) *api.DeviceSpec {
	return &api.DeviceSpec{
		HostPath:      filepath.Join(p.config.DeviceDir, name),
		ContainerPath: "/dev/" + name,
		Permissions:   "rw",
	}
}
