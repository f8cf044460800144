package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// origin is where the error of a call comes from.
type origin string

const (
	notSent  origin = "not sent"
	noAnswer origin = "no answer"
	answered origin = "the driver's answer"
)

func originOf(err error) origin {
	var e *outcome.Error
	switch {
	case !errors.As(err, &e):
		return answered
	case e.Outcome == outcome.Unchanged:
		return notSent
	case e.CutOff:
		return noAnswer
	}
	return "?"
}

// garbled encodes responses of CreateVolume so that nobody can decode them.
type garbled struct{ encoding.CodecV2 }

func (g garbled) Marshal(message any) (mem.BufferSlice, error) {
	if _, ok := message.(*csi.CreateVolumeResponse); ok {
		return mem.BufferSlice{mem.SliceBuffer("\xff\xff\xff")}, nil
	}
	return g.CodecV2.Marshal(message)
}

// The code of an error does not tell whether it is the driver's answer. Each case is a real server on a real socket.
func TestAnErrorTellsWhereItComesFrom(t *testing.T) {
	t.Parallel()
	fails := func(code codes.Code) func(context.Context) (*csi.CreateVolumeResponse, error) {
		return func(context.Context) (*csi.CreateVolumeResponse, error) { return nil, status.Error(code, "as told") }
	}
	waits := func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ok := func(context.Context) (*csi.CreateVolumeResponse, error) { return &csi.CreateVolumeResponse{}, nil }
	for name, tc := range map[string]struct {
		server  []grpc.ServerOption
		driver  func(ctx context.Context) (*csi.CreateVolumeResponse, error)
		request *csi.CreateVolumeRequest
		timeout time.Duration
		during  func(s *grpc.Server, cancel context.CancelFunc) // called when the call has reached the driver
		code    codes.Code
		want    origin
	}{
		"the driver answers Unavailable":       {driver: fails(codes.Unavailable), code: codes.Unavailable, want: answered},
		"the driver answers Internal":          {driver: fails(codes.Internal), code: codes.Internal, want: answered},
		"the driver answers ResourceExhausted": {driver: fails(codes.ResourceExhausted), code: codes.ResourceExhausted, want: answered},
		"the driver answers DeadlineExceeded":  {driver: fails(codes.DeadlineExceeded), code: codes.DeadlineExceeded, want: answered},
		"the driver sends headers before its error": {
			driver: func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
				if err := grpc.SendHeader(ctx, metadata.Pairs("version", "1")); err != nil {
					return nil, err
				}
				return nil, status.Error(codes.Internal, "as told")
			},
			code: codes.Internal, want: answered,
		},
		"the driver is killed during the call": {
			driver: waits, during: func(s *grpc.Server, _ context.CancelFunc) { go s.Stop() },
			code: codes.Unavailable, want: noAnswer,
		},
		"the deadline passes": {driver: waits, timeout: 300 * time.Millisecond, code: codes.DeadlineExceeded, want: noAnswer},
		"the caller gives up": {
			driver: waits, during: func(_ *grpc.Server, cancel context.CancelFunc) { cancel() },
			code: codes.Canceled, want: noAnswer,
		},
		"the response is too large": {
			driver: func(context.Context) (*csi.CreateVolumeResponse, error) {
				return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: strings.Repeat("x", maxResponse)}}, nil
			},
			code: codes.ResourceExhausted, want: noAnswer,
		},
		"the response cannot be decoded": {
			server: []grpc.ServerOption{grpc.ForceServerCodecV2(garbled{encoding.GetCodecV2("proto")})},
			driver: ok, code: codes.Internal, want: noAnswer,
		},
		"the request cannot be encoded": {
			driver: ok, request: &csi.CreateVolumeRequest{Name: "v", Parameters: map[string]string{"a": "\xff"}},
			code: codes.Internal, want: notSent,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached := make(chan struct{}, 1)
			fake := newFake("d")
			fake.create = func(ctx context.Context, _ *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				reached <- struct{}{}
				return tc.driver(ctx)
			}
			path := socketFile(t)
			s := fake.listen(t, path, tc.server...)
			timeout := tc.timeout
			if timeout == 0 {
				timeout = time.Minute
			}
			d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Timeouts: Timeouts{Create: timeout}})
			ctx, cancel := context.WithCancel(quiet(t))
			defer cancel()
			if tc.during != nil {
				go func() { <-reached; tc.during(s, cancel) }()
			}
			request := tc.request
			if request == nil {
				request = &csi.CreateVolumeRequest{Name: "v"}
			}
			_, err := d.CreateVolume(ctx, request)
			if status.Code(err) != tc.code || outcome.Code(err) != tc.code {
				t.Errorf("%v, want code %s", err, tc.code)
			}
			if got := originOf(err); got != tc.want {
				t.Errorf("%q: %v", got, err)
			}
			if sent := fake.count("CreateVolume") > 0; sent != (tc.want != notSent) {
				t.Errorf("the driver was called: %v", sent)
			}
		})
	}
}

// A call that meets a connection which is lost and not yet known to be so is not sent.
func TestARefusedConnectionIsNotSent(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	s := fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	l, err := d.acquire(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.release()
	s.Stop()
	if !l.lost(quiet(t)) {
		t.Fatal("the connection lives")
	}
	if _, err := call(quiet(t), &exchange{}, time.Minute, l.controller.CreateVolume, &csi.CreateVolumeRequest{Name: "v"}); originOf(err) != notSent {
		t.Errorf("%q: %v", originOf(err), err)
	}
	if _, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"}); originOf(err) != notSent {
		t.Errorf("%q: %v", originOf(err), err)
	}
	if got := fake.count("CreateVolume"); got != 0 {
		t.Errorf("%d calls", got)
	}
}
