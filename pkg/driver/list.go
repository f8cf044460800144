package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// maxListSize bounds the answer to ListVolumes, in bytes. A driver that does not page sends all volumes at once.
const maxListSize = 256 << 20

// ListVolumes asks the driver for a page of its volumes. Blocking and errors are as for GetCapacity.
func (d *Driver) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	l, err := d.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	list := func(ctx context.Context, req *csi.ListVolumesRequest, opts ...grpc.CallOption) (*csi.ListVolumesResponse, error) {
		return l.controller.ListVolumes(ctx, req, append(opts, grpc.MaxCallRecvMsgSize(maxListSize))...)
	}
	return call(ctx, &exchange{}, d.cfg.Timeout, list, req)
}
