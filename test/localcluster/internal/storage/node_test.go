// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"testing"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A kubelet looks at a socket once. When it has refused the driver there is a new one.
func TestRefusedDriverRegistersAgain(t *testing.T) {
	t.Chdir(t.TempDir()) // the path of a socket is short and has no spaces
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(".")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Close() })
	refused := make(chan struct{}, 1)
	plugin := nodeServer{driver: Driver{Name: "nfs.csi.k8s.io"}, socket: "/csi.sock", refused: refused}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- register(ctx, plugin, "reg.sock", refused) }()
	for _, registered := range []bool{false, true} {
		for event := range watcher.Events {
			if event.Has(fsnotify.Create) {
				break
			}
		}
		conn, err := grpc.NewClient("unix:reg.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		kubelet := registration.NewRegistrationClient(conn)
		info, err := kubelet.GetInfo(t.Context(), &registration.InfoRequest{}, grpc.WaitForReady(true))
		if err != nil || info.Endpoint != "/csi.sock" {
			t.Fatalf("got %v, %v; want the endpoint", info, err)
		}
		status := &registration.RegistrationStatus{PluginRegistered: registered, Error: "node not found"}
		if _, err := kubelet.NotifyRegistrationStatus(t.Context(), status); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
