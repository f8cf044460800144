package driver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func TestCallsReachTheDriver(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	newFake("d").listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	created, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "pv-1"})
	if err != nil || created.GetVolume().GetVolumeId() != "vol-pv-1" {
		t.Errorf("CreateVolume: %v, %v", created, err)
	}
	if err := d.DeleteVolume(quiet(t), &csi.DeleteVolumeRequest{VolumeId: "vol-pv-1"}); err != nil {
		t.Errorf("DeleteVolume: %v", err)
	}
	room, err := d.GetCapacity(quiet(t), &csi.GetCapacityRequest{})
	if err != nil || room.GetAvailableCapacity() != 7 {
		t.Errorf("GetCapacity: %v, %v", room, err)
	}
}

// A driver that does not page sends all volumes at once, which is more than gRPC takes by default.
func TestAListOfVolumesMayBeLarge(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	fake.volumes = 100_000
	fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	page, err := d.ListVolumes(quiet(t), &csi.ListVolumesRequest{StartingToken: "a"})
	if err != nil || len(page.GetEntries()) != fake.volumes || page.GetNextToken() != "a+" {
		t.Errorf("%d volumes, token %q, %v", len(page.GetEntries()), page.GetNextToken(), err)
	}
}

func TestEachCallHasItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wire
		fake := newFake("d")
		fake.create = func(ctx context.Context, _ *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		fake.delete = func(ctx context.Context, _ *csi.DeleteVolumeRequest) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		s := fake.serve(t, w.listen())
		d := connect(t, quiet(t), Config{Address: "/mem", Timeout: 15 * time.Second, dial: w.dial})
		for name, do := range map[string]func() error{
			"CreateVolume": func() error {
				_, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"})
				return err
			},
			"DeleteVolume": func() error { return d.DeleteVolume(quiet(t), &csi.DeleteVolumeRequest{VolumeId: "v"}) },
		} {
			begin := time.Now()
			err := do()
			if status.Code(err) != codes.DeadlineExceeded || time.Since(begin) != 15*time.Second {
				t.Errorf("%s: %v after %s, want DeadlineExceeded after 15s", name, err, time.Since(begin))
			}
			if outcome.OfCreate(err, false) != outcome.Background {
				t.Errorf("%s: outcome %s", name, outcome.OfCreate(err, false))
			}
		}
		d.Close()
		s.Stop()
	})
}

func TestKindsOfCallsHaveTheirOwnDeadlines(t *testing.T) {
	t.Parallel()
	requests := map[string]*csi.CreateVolumeRequest{
		"create":  {},
		"restore": {VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}},
		"clone":   {VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "v"}}}},
	}
	type seconds map[string]time.Duration
	for name, tc := range map[string]struct {
		timeouts Timeouts
		want     seconds
	}{
		"none means that of all":  {Timeouts{}, seconds{"create": 10, "restore": 10, "clone": 10, "delete": 10, "room": 10}},
		"each of its own":         {Timeouts{Create: 20 * time.Second, Restore: 60 * time.Second, Clone: 70 * time.Second, Delete: 5 * time.Second}, seconds{"create": 20, "restore": 60, "clone": 70, "delete": 5, "room": 10}},
		"create is no fallback":   {Timeouts{Create: 20 * time.Second}, seconds{"create": 20, "restore": 10, "clone": 10, "delete": 10, "room": 10}},
		"one for restores alone":  {Timeouts{Restore: 60 * time.Second}, seconds{"create": 10, "restore": 60, "clone": 10, "delete": 10, "room": 10}},
		"shorter is allowed, too": {Timeouts{Clone: time.Second}, seconds{"create": 10, "restore": 10, "clone": 1, "delete": 10, "room": 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, mu := seconds{}, sync.Mutex{}
			note := func(ctx context.Context, kind string) {
				mu.Lock()
				defer mu.Unlock()
				deadline, _ := ctx.Deadline()
				got[kind] = time.Until(deadline).Round(time.Second) / time.Second
			}
			fake := newFake("d")
			fake.create = func(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				note(ctx, req.GetName())
				return &csi.CreateVolumeResponse{}, nil
			}
			fake.delete = func(ctx context.Context, _ *csi.DeleteVolumeRequest) error {
				note(ctx, "delete")
				return nil
			}
			fake.room = func(ctx context.Context) { note(ctx, "room") }
			path := socketFile(t)
			fake.listen(t, path)
			d := connect(t, quiet(t), Config{Address: path, Timeout: 10 * time.Second, Timeouts: tc.timeouts})
			for kind, req := range requests {
				req := &csi.CreateVolumeRequest{Name: kind, VolumeContentSource: req.GetVolumeContentSource()}
				if _, err := d.CreateVolume(quiet(t), req); err != nil {
					t.Error(err)
				}
				if told := d.CreateTimeout(req); told != tc.want[kind]*time.Second {
					t.Errorf("CreateTimeout of %s is %s, want %ds", kind, told, tc.want[kind])
				}
			}
			if err := d.DeleteVolume(quiet(t), &csi.DeleteVolumeRequest{VolumeId: "v"}); err != nil {
				t.Error(err)
			}
			if _, err := d.GetCapacity(quiet(t), &csi.GetCapacityRequest{}); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("deadlines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallsOfACallerThatHasEndedAreNotSent(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	ctx, cancel := context.WithCancel(quiet(t))
	cancel()
	_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"})
	if status.Code(err) != codes.Canceled || outcome.Of(err) != outcome.Unchanged {
		t.Errorf("CreateVolume: %v (%s), want Canceled and Unchanged", err, outcome.Of(err))
	}
	if got := fake.count("CreateVolume"); got != 0 {
		t.Errorf("%d calls, want none", got)
	}
}

// A driver that dies in the middle of a call leaves its outcome open.
func TestALossDuringACallIsNotTakenForUnchanged(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	begun := make(chan struct{})
	fake.create = func(ctx context.Context, _ *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s := fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	errs := make(chan error, 1)
	go func() {
		_, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"})
		errs <- err
	}()
	within(t, "CreateVolume", begun)
	s.Stop()
	err := within(t, "the end of the call", errs)
	if status.Code(err) != codes.Unavailable || outcome.OfCreate(err, true) != outcome.Background {
		t.Errorf("%v (%s), want Unavailable and Background", err, outcome.OfCreate(err, true))
	}
	if strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("error %q claims that nothing was sent", err)
	}
}

func TestAnAnswerThatIsTooLargeIsExhausted(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	fake.create = func(context.Context, *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: strings.Repeat("x", 5<<20)}}, nil
	}
	fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	_, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want ResourceExhausted", err)
	}
}

// Whether a call may be sent is asked before each one that makes, deletes or measures volumes, and of no other; what is refused
// does not reach the driver, and is not measured as a call of it.
func TestEachCallNeedsPermission(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	fake.listen(t, path)
	var asked int
	var refusal error
	m := NewMetrics()
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Metrics: m, MayCall: func() error {
		asked++
		return refusal
	}})
	calls := map[string]func() error{
		"CreateVolume": func() error {
			_, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"})
			return err
		},
		"DeleteVolume": func() error { return d.DeleteVolume(quiet(t), &csi.DeleteVolumeRequest{VolumeId: "v"}) },
		"GetCapacity": func() error {
			_, err := d.GetCapacity(quiet(t), &csi.GetCapacityRequest{})
			return err
		},
	}
	if _, err := d.ListVolumes(quiet(t), &csi.ListVolumesRequest{}); err != nil || asked != 0 {
		t.Errorf("ListVolumes: %v; asked %d times for permission before any call that needs it", err, asked)
	}
	for method, call := range calls {
		asked, refusal = 0, nil
		if err := call(); err != nil || asked != 1 || fake.count(method) != 1 {
			t.Errorf("%s: %v, asked %d times, sent %d times, want once each", method, err, asked, fake.count(method))
		}
		before := series(t, m)
		refusal = errors.New("not the leader")
		err := call()
		if originOf(err) != notSent || outcome.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not the leader") {
			t.Errorf("%s without permission: %v (%s), want that it was not sent and why", method, err, originOf(err))
		}
		if got := fake.count(method); got != 1 {
			t.Errorf("%s was sent %d times, want not without permission", method, got)
		}
		if diff := cmp.Diff(before, series(t, m)); diff != "" {
			t.Errorf("%s without permission is measured (-before +after):\n%s", method, diff)
		}
	}
}
