package driver

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A call that has passed all checks when the connection breaks must not be sent to whoever listens next.
func TestLinkIsNeverDialledAgain(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	server := newFake("old").listen(t, path)
	raw, err := dialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLink(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.retire)
	if !l.acquire() {
		t.Fatal("a new link takes no call")
	}
	defer l.release()
	server.Stop()
	next := newFake("new")
	next.listen(t, path)
	for range 3 {
		_, err = l.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v"})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("CreateVolume: %v, want Unavailable", err)
		}
	}
	if got := next.called(); len(got) != 0 {
		t.Errorf("the next driver was called: %q", got)
	}
}

// Close takes no new calls, lets those in flight end and then closes the socket.
func TestCloseWaitsForCallsInFlight(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	begun, finish := make(chan struct{}), make(chan struct{})
	fake.create = func(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		close(begun)
		<-finish
		return &csi.CreateVolumeResponse{}, nil
	}
	fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	errs := make(chan error, 1)
	go func() {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v"})
		errs <- err
	}()
	within(t, "CreateVolume", begun)
	d.Close()
	if err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.Unavailable {
		t.Errorf("DeleteVolume after Close: %v, want Unavailable", err)
	}
	close(finish)
	if err := within(t, "the answer", errs); err != nil {
		t.Errorf("CreateVolume: %v", err)
	}
	within(t, "the end of the connection", d.link.raw.closed)
}
