// Package plugin advertises the stand-in GPUs to a real kubelet, as NVIDIA's
// device plugin does.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/gpu"
)

// Resource is what pods ask for.
const Resource = "nvidia.com/gpu"

const socket = "nvidia-gpu.sock"

// Config says where the plugin finds its node's things.
type Config struct {
	// StateDir holds gpus.json, watched for changes.
	StateDir string
	// DeviceDir is where the plugin makes device files.
	DeviceDir string
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

// Run serves the plugin until the context ends, and registers again each time
// the kubelet starts anew.
func Run(ctx context.Context, config Config) error {
	p := &plugin{config: config, changed: make(chan struct{})}
	if err := p.reload(); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := os.MkdirAll(api.DevicePluginPath, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{config.StateDir, api.DevicePluginPath} {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("watching %s: %w", dir, err)
		}
	}
	stop, err := p.serve(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			stop()
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watching the kubelet's socket: %w", err)
		case event := <-watcher.Events:
			switch {
			case event.Name == api.KubeletSocket && event.Has(fsnotify.Create):
				stop()
				if stop, err = p.serve(ctx); err != nil {
					return err
				}
			case filepath.Base(event.Name) == gpu.StateFile:
				if err := p.reload(); err != nil {
					log.Printf("reading GPUs: %v", err)
				}
			}
		}
	}
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
		if err := p.makeDevice(name); err != nil {
			return err
		}
	}
	for _, g := range gpus {
		if err := p.makeDevice(fmt.Sprintf("nvidia%d", g.Index)); err != nil {
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

// makeDevice makes a device file that can be opened, as a GPU's can; behind it
// is /dev/null.
func (p *plugin) makeDevice(name string) error {
	path := filepath.Join(p.config.DeviceDir, name)
	err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making device file %s: %w", path, err)
	}
	return os.Chmod(path, 0o666)
}

// serve listens and, if a kubelet is there, registers with it.
func (p *plugin) serve(ctx context.Context) (stop func(), err error) {
	path := filepath.Join(api.DevicePluginPath, socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Printf("serving the device plugin: %v", err)
		}
	}()
	if _, err := os.Stat(api.KubeletSocket); err != nil {
		log.Printf("no kubelet yet")
		return server.Stop, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: Resource,
		// The socket's file is there a moment before the kubelet listens on it.
	}, grpc.WaitForReady(true))
	if err != nil {
		// The kubelet is on its way down or up: its next socket tells.
		log.Printf("registering with the kubelet: %v", err)
		return server.Stop, nil
	}
	log.Printf("registered %d GPUs", len(p.gpus))
	return server.Stop, nil
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
	for _, container := range request.ContainerRequests {
		response := &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
			Mounts: []*api.Mount{
				{HostPath: p.config.SMI, ContainerPath: "/usr/bin/nvidia-smi", ReadOnly: true},
				{HostPath: p.config.StateDir, ContainerPath: gpu.StateDir, ReadOnly: true},
			},
			Devices: []*api.DeviceSpec{p.device("nvidiactl"), p.device("nvidia-uvm")},
		}
		for _, id := range container.DevicesIds {
			g, ok := p.find(id)
			if !ok {
				return nil, fmt.Errorf("allocating GPUs: the kubelet asked for %s, which this node does not have", id)
			}
			if g.Fault.Kind != gpu.Missing {
				response.Devices = append(response.Devices, p.device(fmt.Sprintf("nvidia%d", g.Index)))
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, response)
	}
	return answer, nil
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
