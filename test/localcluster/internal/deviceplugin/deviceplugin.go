// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin serves the stand-ins' device plugins to a real kubelet.
package deviceplugin

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

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Plugin is one resource of a node.
type Plugin struct {
	// Resource is the resource name that pods request.
	Resource string
	// Socket is the file name of the plugin's socket.
	Socket string
	Server api.DevicePluginServer
}

// Run serves the plugins until the context ends, and registers them again whenever the kubelet restarts. It calls reload
// whenever the state file changes.
func Run(ctx context.Context, plugins []Plugin, stateFile string, reload func() error) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := os.MkdirAll(api.DevicePluginPath, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(stateFile), api.DevicePluginPath} {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("watching %s: %w", dir, err)
		}
	}
	stop, lost, err := serveAll(ctx, plugins)
	if err != nil {
		return err
	}
	for {
		select {
		case <-lost:
			// A kubelet to which a plugin registers twice at once may close the second connection for the first, and refuse a
			// registration meanwhile.
			if !sleep(ctx, settleTime) {
				continue
			}
			if conn, err := net.Dial("unix", api.KubeletSocket); err == nil {
				conn.Close()
				stop()
				if stop, lost, err = serveAll(ctx, plugins); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			stop()
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watching the kubelet's socket: %w", err)
		case event := <-watcher.Events:
			switch {
			case event.Name == api.KubeletSocket && event.Has(fsnotify.Create):
				stop()
				if stop, lost, err = serveAll(ctx, plugins); err != nil {
					return err
				}
			case event.Name == stateFile:
				if err := reload(); err != nil {
					log.Printf("reading %s: %v", stateFile, err)
				}
			}
		}
	}
}

// settleTime is how long a kubelet gets to end the connections of an earlier registration.
const settleTime = time.Second

// sleep reports whether it has slept, because the context has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// serveAll serves the plugins until the caller calls stop. lost has a value after the kubelet has closed a connection or
// refused a registration.
func serveAll(ctx context.Context, plugins []Plugin) (stop func(), lost chan struct{}, err error) {
	lost = make(chan struct{}, 1)
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for _, p := range plugins {
		s, err := p.serve(ctx, lost)
		if err != nil {
			stop()
			return nil, nil, err
		}
		stops = append(stops, s)
	}
	return stop, lost, nil
}

// serve listens, and registers with the kubelet if one is running.
func (p Plugin) serve(ctx context.Context, lost chan<- struct{}) (stop func(), err error) {
	path := filepath.Join(api.DevicePluginPath, p.Socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	again := func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	}
	server := grpc.NewServer(
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			err := handle(srv, stream)
			again()
			return err
		}))
	api.RegisterDevicePluginServer(server, p.Server)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Printf("serving %s: %v", p.Resource, err)
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
	options, err := p.Server.GetDevicePluginOptions(ctx, &api.Empty{})
	if err != nil {
		return nil, err
	}
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: p.Socket, ResourceName: p.Resource, Options: options,
		// The socket's file exists a moment before the kubelet listens on it.
	}, grpc.WaitForReady(true))
	if err != nil {
		// The kubelet is stopping, starting or busy.
		log.Printf("registering with the kubelet: %v", err)
		again()
		return server.Stop, nil
	}
	log.Printf("registered %s", p.Resource)
	return server.Stop, nil
}

// MakeFile creates a device file that can be opened like a real device's. It behaves like /dev/null.
func MakeFile(dir, name string) error {
	path := filepath.Join(dir, name)
	err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating device file %s: %w", path, err)
	}
	return os.Chmod(path, 0o666)
}
