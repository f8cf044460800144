package driver

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// requestFor returns a request for a volume in a cluster of n nodes, with its requirements encoded.
func requestFor(tb testing.TB, encoder *topology.Encoder, n int) (plain, compact *csi.CreateVolumeRequest) {
	tb.Helper()
	terms := make([]*csi.Topology, n)
	for i := range terms {
		terms[i] = &csi.Topology{Segments: map[string]string{"topology.example.com/node": fmt.Sprintf("node-%d", i)}}
	}
	plain = &csi.CreateVolumeRequest{
		Name:          "pvc-1",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
		Parameters:    map[string]string{"kind": "fast"},
		Secrets:       map[string]string{"key": "value"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "source"},
		}},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: terms, Preferred: append(terms[n/2:n:n], terms[:n/2]...)},
		MutableParameters:         map[string]string{"iops": "100"},
	}
	compact = proto.CloneOf(plain)
	encoded, err := encoder.Compact(plain.GetAccessibilityRequirements())
	if err != nil {
		tb.Fatal(err)
	}
	compact.AccessibilityRequirements = encoded
	return plain, compact
}

func TestCodecSendsWhatTheRequestSays(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 20, 5000} {
		var encoder topology.Encoder
		want, compact := requestFor(t, &encoder, nodes)
		// A field of a later version of CSI.
		want.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
		compact.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
		got := &csi.CreateVolumeRequest{}
		wire, err := newCodec().Marshal(compact)
		if err != nil {
			t.Fatal(err)
		}
		if err := newCodec().Unmarshal(wire, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%d nodes (-want +got):\n%s", nodes, diff)
		}
	}
}

func TestCodecSharesWhatIsEncoded(t *testing.T) {
	t.Parallel()
	var encoder topology.Encoder
	_, compact := requestFor(t, &encoder, 5000)
	shared := compact.GetAccessibilityRequirements().ProtoReflect().GetUnknown()
	wire, err := newCodec().Marshal(compact)
	if err != nil {
		t.Fatal(err)
	}
	last := wire[len(wire)-1].ReadOnlyData()
	if len(wire) < 2 || len(last) != len(shared) || &last[0] != &shared[0] {
		t.Errorf("%d buffers, the last one of %d bytes, want the %d bytes of the requirements themselves", len(wire), len(last), len(shared))
	}
}

// BenchmarkMarshal is what a request costs that waits to be sent.
func BenchmarkMarshal(b *testing.B) {
	for _, nodes := range []int{100, 2000} {
		var encoder topology.Encoder
		_, compact := requestFor(b, &encoder, nodes)
		c := newCodec()
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Marshal(compact); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
