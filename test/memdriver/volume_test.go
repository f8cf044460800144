package memdriver_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

func TestIncompatibleIsAlreadyExists(t *testing.T) {
	t.Parallel()
	_, client, _ := serve(t, memdriver.Config{Topology: map[string]string{zone: "a"}})
	base := request("v")
	base.Parameters = map[string]string{"type": "fast"}
	_, err := client.CreateVolume(t.Context(), base)
	wantCode(t, err, codes.OK)
	for name, edit := range map[string]func(*csi.CreateVolumeRequest){
		"size":       func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes *= 2 },
		"limit":      func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: 5} },
		"parameters": func(r *csi.CreateVolumeRequest) { r.Parameters = nil },
		"capabilities": func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(r.GetVolumeCapabilities(), r.GetVolumeCapabilities()[0])
		},
		"content source": func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{}
		},
		"topology": func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{zone: "b"}}}}
		},
	} {
		r := request("v")
		r.Parameters = base.GetParameters()
		edit(r)
		_, err := client.CreateVolume(t.Context(), r)
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("another %s: %v, want AlreadyExists", name, err)
		}
	}
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	segment := func(value string) map[string]string { return map[string]string{zone: value} }
	ask := func(values ...string) []*csi.Topology {
		var list []*csi.Topology
		for _, value := range values {
			list = append(list, &csi.Topology{Segments: segment(value)})
		}
		return list
	}
	tests := map[string]struct {
		full     []string // segments without room
		ask      *csi.TopologyRequirement
		want     string
		wantCode codes.Code
	}{
		"nothing asked goes to the own node":     {want: "a"},
		"the first preferred one wins":           {ask: &csi.TopologyRequirement{Requisite: ask("a", "b"), Preferred: ask("b", "a")}, want: "b"},
		"a full one is passed over":              {full: []string{"b"}, ask: &csi.TopologyRequirement{Requisite: ask("a", "b"), Preferred: ask("b", "a")}, want: "a"},
		"all full is exhausted":                  {full: []string{"b"}, ask: &csi.TopologyRequirement{Requisite: ask("b")}, wantCode: codes.ResourceExhausted},
		"a place it does not serve is exhausted": {ask: &csi.TopologyRequirement{Requisite: ask("nowhere")}, wantCode: codes.ResourceExhausted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client, _ := serve(t, memdriver.Config{
				Topology: segment("a"), Segments: []map[string]string{segment("a"), segment("b")}, CapacityBytes: gib,
			})
			for _, value := range tc.full {
				fill := request("fill-" + value)
				fill.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: ask(value)}
				_, err := client.CreateVolume(t.Context(), fill)
				wantCode(t, err, codes.OK)
				room, err := client.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: ask(value)[0]})
				if err != nil || room.GetAvailableCapacity() != 0 {
					t.Errorf("room in the full segment: %v, %v", room, err)
				}
			}
			r := request("v")
			r.AccessibilityRequirements = tc.ask
			answer, err := client.CreateVolume(t.Context(), r)
			wantCode(t, err, tc.wantCode)
			if err == nil {
				want := ask(tc.want)
				if diff := cmp.Diff(want, answer.GetVolume().GetAccessibleTopology(), protocmp.Transform()); diff != "" {
					t.Errorf("accessible topology (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	driver, client, _ := serve(t, memdriver.Config{RoundTo: gib, MaxVolumeBytes: 4 * gib})
	small := request("small")
	small.CapacityRange.RequiredBytes = 1
	answer, err := client.CreateVolume(t.Context(), small)
	wantCode(t, err, codes.OK)
	if got := answer.GetVolume().GetCapacityBytes(); got != gib {
		t.Errorf("size %d, want rounded up to %d", got, gib)
	}
	snapshot, err := client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: answer.GetVolume().GetVolumeId()})
	wantCode(t, err, codes.OK)
	restore := request("restore")
	restore.CapacityRange = &csi.CapacityRange{LimitBytes: 1}
	restore.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()},
	}}
	_, err = client.CreateVolume(t.Context(), restore)
	wantCode(t, err, codes.OutOfRange)
	huge := request("huge")
	huge.CapacityRange.RequiredBytes = 5 * gib
	_, err = client.CreateVolume(t.Context(), huge)
	wantCode(t, err, codes.OutOfRange)
	room, err := client.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	wantCode(t, err, codes.OK)
	if room.GetMaximumVolumeSize().GetValue() != 4*gib {
		t.Errorf("capacity %v, want the maximum volume size", room)
	}
	if got := len(driver.Snapshots()); got != 1 {
		t.Errorf("%d snapshots, want 1", got)
	}
}
