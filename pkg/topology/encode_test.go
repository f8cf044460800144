package topology

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

func hosts(n int) *Terms {
	var segments []Segment
	for i := range n {
		segments = append(segments, one(fmt.Sprintf("topology.example.com/zone=z%d,topology.example.com/node=node-%05d", i%3, i)))
	}
	return NewTerms(segments)
}

// Whatever goes into the encoder, the other end of the wire sees what it would have seen without.
func TestCompactIsTheSameOnTheWire(t *testing.T) {
	t.Parallel()
	long, short := hosts(40), hosts(3)
	other := hosts(40)
	cases := map[string]*csi.TopologyRequirement{
		"nothing":                 nil,
		"empty":                   {},
		"a short list":            short.requirement(1),
		"preferred is missing":    {Requisite: long.requirement(0).GetRequisite()},
		"requisite is missing":    {Preferred: long.requirement(0).GetPreferred()},
		"equal, but not the same": {Requisite: long.requirement(0).GetRequisite(), Preferred: other.requirement(0).GetPreferred()},
		"not a rotation":          {Requisite: long.ring[:40], Preferred: append(slices.Clone(long.ring[1:40]), long.ring[1])},
		"another list":            other.requirement(7),
	}
	for i := range 40 {
		cases[fmt.Sprintf("rotated by %d", i)] = long.requirement(i)
	}
	var encoder Encoder
	for name, r := range cases {
		for range 2 {
			compact, err := encoder.Compact(r)
			if err != nil {
				t.Fatal(err)
			}
			wire, err := proto.Marshal(&csi.CreateVolumeRequest{Name: "v", AccessibilityRequirements: compact})
			if err != nil {
				t.Fatal(err)
			}
			var got csi.CreateVolumeRequest
			if err := proto.Unmarshal(wire, &got); err != nil {
				t.Fatal(err)
			}
			if want := (&csi.CreateVolumeRequest{Name: "v", AccessibilityRequirements: r}); !proto.Equal(want, &got) {
				t.Errorf("%s: the driver sees %v, want %v", name, &got, want)
			}
			again, err := encoder.Compact(compact)
			if err != nil || !proto.Equal(again, compact) {
				t.Errorf("%s: compacting twice: %v", name, err)
			}
		}
	}
	if len(encoder.recent) != 2 {
		t.Errorf("%d lists remembered, want the two long ones", len(encoder.recent))
	}
}

// The encoder keeps the lists that are in use and lets go of the others.
func TestEncoderForgets(t *testing.T) {
	t.Parallel()
	var encoder Encoder
	kept := hosts(20)
	for range 2 * encodedLists {
		for _, terms := range []*Terms{kept, hosts(20)} {
			if _, err := encoder.Compact(terms.requirement(3)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(encoder.recent) != encodedLists {
		t.Fatalf("%d lists remembered, want %d", len(encoder.recent), encodedLists)
	}
	bytes := &encoder.recent[1].bytes[0]
	if _, err := encoder.Compact(kept.requirement(4)); err != nil {
		t.Fatal(err)
	}
	if &encoder.recent[0].bytes[0] != bytes {
		t.Error("the list that is in use was encoded anew")
	}
}

// Long lists are bounded by their bytes.
func TestEncoderForgetsLongLists(t *testing.T) {
	t.Parallel()
	var encoder Encoder
	for range 5 {
		if _, err := encoder.Compact(hosts(20_000).requirement(0)); err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, list := range encoder.recent {
			size += len(list.bytes)
		}
		if size > encodedBytes || len(encoder.recent) == 0 {
			t.Fatalf("%d lists with %d bytes remembered, want at most %d bytes", len(encoder.recent), size, encodedBytes)
		}
	}
}

func TestCompactConcurrently(t *testing.T) {
	t.Parallel()
	var encoder Encoder
	lists := []*Terms{hosts(20), hosts(21), hosts(22), hosts(23), hosts(24), hosts(25)}
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 50 {
				terms := lists[(i+j)%len(lists)]
				compact, err := encoder.Compact(terms.requirement(j % 20))
				if err != nil {
					t.Error(err)
					return
				}
				if proto.Size(compact) != proto.Size(terms.requirement(0)) {
					t.Errorf("%d bytes, want %d", proto.Size(compact), proto.Size(terms.requirement(0)))
				}
			}
		})
	}
	running.Wait()
}

var sizes = []int{100, 1_000, 5_000}

// BenchmarkMarshal is what a requirement costs on its way to the driver, with and without the encoder.
func BenchmarkMarshal(b *testing.B) {
	for _, n := range sizes {
		terms := hosts(n)
		var encoder Encoder
		for name, prepare := range map[string]func(*csi.TopologyRequirement) (*csi.TopologyRequirement, error){
			"plain":   func(r *csi.TopologyRequirement) (*csi.TopologyRequirement, error) { return r, nil },
			"compact": encoder.Compact,
		} {
			b.Run(fmt.Sprintf("how=%s/nodes=%d/keys=2", name, n), func(b *testing.B) {
				var buffer []byte
				b.ReportAllocs()
				for b.Loop() {
					r, err := prepare(terms.requirement(n / 2))
					if err != nil {
						b.Fatal(err)
					}
					if buffer, err = (proto.MarshalOptions{}).MarshalAppend(buffer[:0], &csi.CreateVolumeRequest{AccessibilityRequirements: r}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(buffer)), "wire-B")
			})
		}
	}
}

// BenchmarkRequire is the arithmetic alone, for a claim without a node and for one with.
func BenchmarkRequire(b *testing.B) {
	for _, n := range sizes {
		for keys, terms := range map[int]*Terms{1: NewTerms([]Segment{one("zone=a"), one("zone=b"), one("zone=c")}), 2: hosts(n)} {
			facts := Facts{Node: terms.Segments()[terms.Len()/2], Terms: terms}
			for name, r := range map[string]Request{
				"immediate": {ClaimName: "data-web-17", Immediate: true},
				"selected":  {SelectedNode: "n"},
				"strict":    {SelectedNode: "n", Strict: true},
				"keep":      {SelectedNode: "n", KeepNodeTopology: true, AllowedTopologies: keepAll(facts.Node)},
			} {
				b.Run(fmt.Sprintf("claim=%s/nodes=%d/keys=%d", name, n, keys), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if _, err := Require(r, facts); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
