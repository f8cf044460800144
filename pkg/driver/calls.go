package driver

import (
	"cmp"
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// Timeouts are deadlines of kinds of calls. Zero means Config.Timeout.
type Timeouts struct {
	// Create is for CreateVolume without a content source (--create-timeout), Restore with a snapshot
	// (--restore-timeout), Clone with a volume (--clone-timeout).
	Create, Restore, Clone time.Duration
	// Delete is for DeleteVolume (--delete-timeout).
	Delete time.Duration
}

// method is a call of a generated client.
type method[Q, R any] func(context.Context, Q, ...grpc.CallOption) (R, error)

// CreateTimeout returns the deadline that CreateVolume gives to a call with this request.
func (d *Driver) CreateTimeout(req *csi.CreateVolumeRequest) time.Duration {
	own := d.cfg.Timeouts.Create
	switch req.GetVolumeContentSource().GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		own = d.cfg.Timeouts.Restore
	case *csi.VolumeContentSource_Volume:
		own = d.cfg.Timeouts.Clone
	}
	return cmp.Or(own, d.cfg.Timeout)
}

// CreateVolume asks the driver for a volume. It blocks until the answer, the deadline of CreateTimeout
// or the end of ctx. An error has a gRPC status, and its type tells where that comes from:
//   - an outcome.Error with outcome.Unchanged: the request was not sent, because the driver is away, Config.MayCall or the
//     end of ctx forbids it, or req cannot be encoded;
//   - an outcome.Error made by outcome.WithoutAnswer: the request was sent, and no answer came or none that can be read;
//   - any other error is the driver's own answer.
//
// It does not change req.
func (d *Driver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	l, err := d.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	return call(ctx, &exchange{mayCall: d.MayCall}, d.CreateTimeout(req), l.controller.CreateVolume, req)
}

// DeleteVolume asks the driver to delete a volume. Blocking and errors are as for CreateVolume; the deadline is
// Timeouts.Delete.
func (d *Driver) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) error {
	l, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	_, err = call(ctx, &exchange{mayCall: d.MayCall}, cmp.Or(d.cfg.Timeouts.Delete, d.cfg.Timeout), l.controller.DeleteVolume, req)
	return err
}

// GetCapacity asks the driver how much room there is. Blocking and errors are as for CreateVolume; the deadline is
// Config.Timeout.
func (d *Driver) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	l, err := d.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer l.release()
	return call(ctx, &exchange{mayCall: d.MayCall}, d.cfg.Timeout, l.controller.GetCapacity, req)
}

// MayCall returns why no call is sent now that Config.MayCall is asked about; nil when such calls are sent.
func (d *Driver) MayCall() error {
	if d.cfg.MayCall == nil {
		return nil
	}
	return d.cfg.MayCall()
}

// acquire returns the connection if a call can be sent over it now; release it afterwards.
func (d *Driver) acquire(ctx context.Context) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, outcome.With(outcome.Unchanged, status.FromContextError(err).Err())
	}
	d.mu.Lock()
	l := d.link // retired while the driver is away
	d.mu.Unlock()
	if !l.acquire() {
		return nil, outcome.With(outcome.Unchanged,
			status.Errorf(codes.Unavailable, "the CSI driver at %q is away, nothing was sent", d.cfg.Address))
	}
	return l, nil
}

// call sends req under a deadline and records it in e. The types of its errors are those of CreateVolume.
func call[Q, R any](ctx context.Context, e *exchange, timeout time.Duration, f method[Q, R], req Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := f(e.recorded(ctx), req)
	return resp, e.judge(err)
}

// ask is call for a connection that is still being looked at: a loss of it is errRestarted. The driver hears
// of the deadline of the call and not of that of ctx: when ctx ends, it has ended before the call does.
func ask[Q, R any](ctx context.Context, d *Driver, l *link, f method[Q, R], req Q) (R, error) {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	resp, err := call(asking, &exchange{}, d.cfg.Timeout, f, req)
	if err != nil && l.lostBy(ctx, err) {
		err = errRestarted
	}
	return resp, err
}
