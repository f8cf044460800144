package memdriver_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

const (
	create = "CreateVolume"
	gib    = 1 << 30
	zone   = "topology.mem.csi/zone"
)

func serve(t *testing.T, cfg memdriver.Config) (*memdriver.Driver, csi.ControllerClient, *grpc.ClientConn) {
	t.Helper()
	driver := memdriver.Serve(t, cfg)
	conn, err := grpc.NewClient("unix:"+driver.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return driver, csi.NewControllerClient(conn), conn
}

func request(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:          name,
		CapacityRange: &csi.CapacityRange{RequiredBytes: gib},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		}},
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("code %s, want %s: %v", status.Code(err), want, err)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rule        memdriver.Rule
		giveUp      func(memdriver.Call) bool // when the caller loses patience; nil: never
		wantCode    codes.Code
		wantVolumes int
		check       func(*testing.T, *csi.CreateVolumeResponse)
	}{
		"no rule makes the volume":                {rule: memdriver.Rule{Method: "DeleteVolume", Code: codes.Internal}, wantVolumes: 1},
		"fail makes nothing":                      {rule: memdriver.Fail(create, codes.Internal, 1), wantCode: codes.Internal},
		"fail late makes the volume":              {rule: memdriver.FailLate(create, codes.DeadlineExceeded, 1), wantCode: codes.DeadlineExceeded, wantVolumes: 1},
		"hang ends with the caller's patience":    {rule: memdriver.Hang(create, 1), giveUp: begun, wantCode: codes.Canceled},
		"an answer too late leaves a volume":      {rule: memdriver.Rule{Lag: time.Hour}, giveUp: worked, wantCode: codes.Canceled, wantVolumes: 1},
		"another method's rule is not ours":       {rule: memdriver.Fail("DeleteVolume", codes.Internal, 0), wantVolumes: 1},
		"a rule for another name is not ours":     {rule: memdriver.Rule{Key: "other", Code: codes.Internal}, wantVolumes: 1},
		"a rule that does not agree is left out":  {rule: memdriver.Rule{Code: codes.Internal, When: func(memdriver.Call) bool { return false }}, wantVolumes: 1},
		"skip answers an empty message":           {rule: memdriver.Rule{Method: create, Skip: true}, check: wantVolume(nil)},
		"no volume in the answer, made though":    {rule: memdriver.NoVolume(1), wantVolumes: 1, check: wantVolume(nil)},
		"an empty id":                             {rule: memdriver.EmptyID(1), wantVolumes: 1, check: wantVolume(&csi.Volume{CapacityBytes: gib})},
		"a negative size":                         {rule: memdriver.Size(-1, 1), wantVolumes: 1, check: wantVolume(&csi.Volume{VolumeId: "vol-0001", CapacityBytes: -1})},
		"an accessible topology without segments": {rule: memdriver.EmptySegment(1), wantVolumes: 1, check: wantVolume(&csi.Volume{VolumeId: "vol-0001", CapacityBytes: gib, AccessibleTopology: []*csi.Topology{{}}})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, client, _ := serve(t, memdriver.Config{})
			driver.Add(tc.rule)
			ctx := t.Context()
			if tc.giveUp != nil {
				ctx = endWhen(t, driver, tc.giveUp)
			}
			answer, err := client.CreateVolume(ctx, request("v"))
			wantCode(t, err, tc.wantCode)
			if tc.check != nil {
				tc.check(t, answer)
			}
			if err := driver.WaitVolumes(t.Context(), tc.wantVolumes); err != nil {
				t.Error(err)
			}
		})
	}
}

func begun(memdriver.Call) bool       { return true }
func worked(call memdriver.Call) bool { return call.Worked }

// endWhen returns a context that ends as soon as the first call of CreateVolume has come as far as that.
func endWhen(t *testing.T, driver *memdriver.Driver, far func(memdriver.Call) bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		_ = driver.WaitFor(t.Context(), func() bool {
			calls := driver.Calls(create)
			return len(calls) > 0 && far(calls[0])
		})
	}()
	return ctx
}

func wantVolume(want *csi.Volume) func(*testing.T, *csi.CreateVolumeResponse) {
	if want != nil {
		want.VolumeContext = map[string]string{"name": "v"}
	}
	return func(t *testing.T, answer *csi.CreateVolumeResponse) {
		t.Helper()
		if diff := cmp.Diff(want, answer.GetVolume(), protocmp.Transform()); diff != "" {
			t.Errorf("volume (-want +got):\n%s", diff)
		}
	}
}

func TestNoSourceDropsOnlyTheSource(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{})
	source, err := client.CreateVolume(t.Context(), request("source"))
	wantCode(t, err, codes.OK)
	driver.Add(memdriver.NoSource(1))
	clone := request("clone")
	clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.GetVolume().GetVolumeId()},
	}}
	answer, err := client.CreateVolume(t.Context(), clone)
	wantCode(t, err, codes.OK)
	if answer.GetVolume().GetContentSource() != nil || answer.GetVolume().GetVolumeId() == "" {
		t.Errorf("answer %v, want a volume without source", answer)
	}
	again, err := client.CreateVolume(t.Context(), clone)
	wantCode(t, err, codes.OK)
	if again.GetVolume().GetContentSource() == nil {
		t.Error("the rule outlived its one call")
	}
}

func TestRuleServesItsTimesAndTheNewestWins(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{})
	remove := driver.Add(memdriver.Fail(create, codes.Internal, 0))
	driver.Add(memdriver.Fail(create, codes.ResourceExhausted, 2))
	for _, want := range []codes.Code{codes.ResourceExhausted, codes.ResourceExhausted, codes.Internal, codes.Internal} {
		_, err := client.CreateVolume(t.Context(), request("v"))
		wantCode(t, err, want)
	}
	remove()
	_, err := client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)
	driver.Add(memdriver.Fail("", codes.Internal, 0))
	driver.ClearRules()
	_, err = client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)
}

// A name that is worked on is busy, also when the caller of that work has long left.
func TestBusyNameIsAborted(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{})
	rule, release := memdriver.Block(create)
	driver.Add(rule)
	_, err := client.CreateVolume(endWhen(t, driver, begun), request("v"))
	wantCode(t, err, codes.Canceled)
	_, err = client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.Aborted)

	release()
	release()
	if err := driver.WaitFor(t.Context(), func() bool { return len(driver.Volumes()) == 1 && driver.Calls()[0].Worked }); err != nil {
		t.Fatal(err)
	}
	driver.ClearRules()
	err = driver.WaitFor(t.Context(), func() bool {
		_, err := client.CreateVolume(t.Context(), request("v"))
		return status.Code(err) == codes.OK
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(driver.Volumes()); got != 1 {
		t.Errorf("%d volumes, want the one that was begun first", got)
	}
}

func TestOverlapsAreRecorded(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{})
	rule, release := memdriver.Block(create)
	driver.Add(rule)
	first := make(chan error, 1)
	go func() {
		_, err := client.CreateVolume(t.Context(), request("v"))
		first <- err
	}()
	if _, err := driver.WaitStarted(t.Context(), create, 1); err != nil {
		t.Fatal(err)
	}
	_, err := client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.Aborted)
	release()
	wantCode(t, <-first, codes.OK)
	_, err = client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)

	var overlaps [][]int
	for _, call := range driver.Calls(create) {
		overlaps = append(overlaps, call.Overlaps)
	}
	if diff := cmp.Diff([][]int{nil, {1}, nil}, overlaps); diff != "" {
		t.Errorf("overlaps (-want +got):\n%s", diff)
	}
}

// A kill before the work loses the work, a kill after it loses the answer; both keep what exists.
func TestStopLosesWorkOrAnswer(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rule        memdriver.Rule
		ready       func(memdriver.Call) bool
		wantVolumes int
	}{
		"before the work": {
			rule:  memdriver.Slow(create, time.Hour),
			ready: begun,
		},
		"between the work and the answer": {
			rule:        memdriver.Rule{Method: create, Lag: time.Hour},
			ready:       worked,
			wantVolumes: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, client, _ := serve(t, memdriver.Config{})
			driver.Add(tc.rule)
			answered := make(chan error, 1)
			go func() {
				_, err := client.CreateVolume(t.Context(), request("v"))
				answered <- err
			}()
			err := driver.WaitFor(t.Context(), func() bool {
				calls := driver.Calls(create)
				return len(calls) == 1 && tc.ready(calls[0])
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := driver.Restart(); err != nil {
				t.Fatal(err)
			}
			wantCode(t, <-answered, codes.Unavailable)
			if got := len(driver.Volumes()); got != tc.wantVolumes {
				t.Errorf("%d volumes after the restart, want %d", got, tc.wantVolumes)
			}
			driver.ClearRules()
			// The client may not have noticed yet that its old connection is gone.
			for err = status.Error(codes.Unavailable, ""); status.Code(err) == codes.Unavailable; {
				_, err = client.CreateVolume(t.Context(), request("v"), grpc.WaitForReady(true))
			}
			wantCode(t, err, codes.OK)
			if got := len(driver.Volumes()); got != 1 {
				t.Errorf("%d volumes after the retry, want 1", got)
			}
		})
	}
}

func TestForgetDropsVolumesAndNoIDIsUsedTwice(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{})
	before, err := client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)
	driver.Forget()
	if left := driver.Volumes(); len(left) != 0 {
		t.Errorf("volumes left: %v", left)
	}
	after, err := client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)
	if before.GetVolume().GetVolumeId() == after.GetVolume().GetVolumeId() {
		t.Errorf("id %s was given out twice", after.GetVolume().GetVolumeId())
	}
}

func TestChangeIsSeenByTheNextCall(t *testing.T) {
	t.Parallel()
	driver, client, conn := serve(t, memdriver.Config{NotReady: true, Capabilities: []memdriver.Capability{}})
	id := csi.NewIdentityClient(conn)
	probe, err := id.Probe(t.Context(), &csi.ProbeRequest{})
	if err != nil || probe.GetReady().GetValue() {
		t.Errorf("probe %v, %v, want not ready", probe, err)
	}
	_, err = client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.Unimplemented)
	driver.Change(func(cfg *memdriver.Config) {
		cfg.NotReady, cfg.Name, cfg.Capabilities = false, "other.csi.example.com", memdriver.AllCapabilities()
	})
	probe, err = id.Probe(t.Context(), &csi.ProbeRequest{})
	if err != nil || !probe.GetReady().GetValue() {
		t.Errorf("probe %v, %v, want ready", probe, err)
	}
	info, err := id.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "other.csi.example.com" || driver.Name() != info.GetName() {
		t.Errorf("name %v, %v, want the changed one", info, err)
	}
	_, err = client.CreateVolume(t.Context(), request("v"))
	wantCode(t, err, codes.OK)
}

func TestSecretsLeaveOnlyTheirKeys(t *testing.T) {
	t.Parallel()
	seen := make(chan memdriver.Call, 1)
	driver, client, _ := serve(t, memdriver.Config{Observe: func(call memdriver.Call) { seen <- call }})
	r := request("v")
	r.Secrets = map[string]string{"user": "hush-1", "password": "hush-2"}
	_, err := client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.OK)
	call := <-seen
	if diff := cmp.Diff([]string{"password", "user"}, call.SecretKeys); diff != "" {
		t.Errorf("secret keys (-want +got):\n%s", diff)
	}
	text, err := json.Marshal(driver.Calls())
	if err != nil {
		t.Fatal(err)
	}
	if all := string(text) + call.String(); strings.Contains(all, "hush") || !strings.Contains(all, "vol-0001") {
		t.Errorf("the record shows a secret or no volume: %s", all)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	driver, _, _ := serve(t, memdriver.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := driver.WaitEnded(ctx, create, 1); err == nil || !strings.Contains(err.Error(), "0 of 1 calls of CreateVolume") {
		t.Errorf("error %v, want one that tells how far it came", err)
	}
	if err := driver.Start(); err == nil {
		t.Error("a second Start was accepted")
	}
}
