// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
)

// sharedPlugin serves one resource of all cards, as the RDMA shared device plugin does (Mellanox/k8s-rdma-shared-dev-plugin:pkg/resources):
// its amount counts pods, and each gets the files of every card, and no variable that names one.
type sharedPlugin struct {
	api.UnimplementedDevicePluginServer
	*node
	functions []rdma.Function
}

func (*sharedPlugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (*sharedPlugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	answer := &api.ListAndWatchResponse{}
	for i := range rdma.Shares {
		answer.Devices = append(answer.Devices, &api.Device{ID: strconv.Itoa(i), Health: api.Healthy})
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *sharedPlugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, p.give(p.functions, map[string]string{}))
	}
	return answer, nil
}
