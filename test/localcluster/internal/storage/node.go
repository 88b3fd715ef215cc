// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The kubelet's folders. Each node's plugin sees its own kubelet's folders at the standard paths.
const (
	pluginsDir  = "/var/lib/kubelet/plugins"
	registryDir = "/var/lib/kubelet/plugins_registry"
)

// RunNode serves the node plugin of every driver to the kubelet of one node until the context ends.
func RunNode(ctx context.Context, node, volumes string) error {
	failed := make(chan error, 2*len(Drivers))
	for _, d := range Drivers {
		socket := filepath.Join(pluginsDir, d.Name, "csi.sock")
		refused := make(chan struct{}, 1)
		plugin := nodeServer{driver: d, node: node, volumes: volumes, socket: socket, refused: refused}
		server := grpc.NewServer()
		csi.RegisterIdentityServer(server, plugin)
		csi.RegisterNodeServer(server, plugin)
		if err := serve(ctx, server, socket, failed); err != nil {
			return err
		}
		go func() { failed <- register(ctx, plugin, filepath.Join(registryDir, d.Name+"-reg.sock"), refused) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// register shows the driver to the kubelet until the context ends, by a second socket, which returns the path of the first. A kubelet
// that has just started may refuse it, because its node does not exist yet or the API server is away. It looks at a socket once, so
// then there is a new one, as with the CSI project's registrar, which ends and is started again.
func register(ctx context.Context, plugin nodeServer, socket string, refused <-chan struct{}) error {
	for ctx.Err() == nil {
		serving, stop := context.WithCancel(ctx)
		registrar := grpc.NewServer()
		registration.RegisterRegistrationServer(registrar, plugin)
		failed := make(chan error, 1)
		if err := serve(serving, registrar, socket, failed); err != nil {
			stop()
			return err
		}
		select {
		case <-refused:
			time.Sleep(time.Second)
		case err := <-failed:
			stop()
			return err
		case <-ctx.Done():
		}
		stop()
		<-failed // the end of this socket must not take the next one with it
	}
	return nil
}

func serve(ctx context.Context, server *grpc.Server, socket string, failed chan<- error) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, server.Stop)
	go func() { failed <- server.Serve(listener) }()
	return nil
}

type nodeServer struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	driver  Driver
	node    string
	volumes string
	socket  string
	// refused gets a value when the kubelet has refused the driver.
	refused chan<- struct{}
}

func (n nodeServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: n.driver.Name, Endpoint: n.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (n nodeServer) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		log.Printf("the kubelet refused %s: %s", n.driver.Name, s.Error)
		select {
		case n.refused <- struct{}{}:
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (n nodeServer) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: n.driver.Name, VendorVersion: "localcluster"}, nil
}

func (n nodeServer) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (n nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.node}, nil
}

func (n nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	expands := &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: expands}}}, nil
}

// NodeExpandVolume has nothing to do: a folder is as large as the disk.
func (n nodeServer) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

func (n nodeServer) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	source := filepath.Join(n.volumes, filepath.Base(r.VolumeId))
	if _, err := os.Stat(source); err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s: %v", r.VolumeId, err)
	}
	if err := os.MkdirAll(r.TargetPath, 0o750); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if mounted(source, r.TargetPath) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := unix.Mount(source, r.TargetPath, "", unix.MS_BIND, ""); err != nil {
		return nil, status.Errorf(codes.Internal, "binding %s to %s: %v", source, r.TargetPath, err)
	}
	if r.Readonly {
		if err := unix.Mount("", r.TargetPath, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return nil, status.Errorf(codes.Internal, "making %s read-only: %v", r.TargetPath, err)
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// mounted reports whether the source is mounted at the target.
func mounted(source, target string) bool {
	var a, b unix.Stat_t
	return unix.Stat(source, &a) == nil && unix.Stat(target, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

func (n nodeServer) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := unix.Unmount(r.TargetPath, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, status.Errorf(codes.Internal, "unmounting %s: %v", r.TargetPath, err)
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, fmt.Sprintf("removing the mount point: %v", err))
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
