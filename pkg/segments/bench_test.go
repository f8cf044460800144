package segments

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// sizes are the clusters that costs are compared over: three zones, or a segment for each node.
var sizes = []int{100, 1_000, 5_000}

func filled(b *testing.B, size, keys int) (x *Index, nodes, csiNodes store) {
	b.Helper()
	x, nodes, csiNodes = fed(b, "zone", "host")
	for i := range size {
		name := fmt.Sprintf("node-%05d", i)
		nodes.apply(node(name, fmt.Sprintf("zone=z%d,host=%s", i%3, name)))
		csiNodes.apply(csiNode(name, []string{"zone", "zone host"}[keys-1]))
	}
	x.tellAll()
	return x, nodes, csiNodes
}

func each(b *testing.B, run func(b *testing.B, size, keys int)) {
	for _, keys := range []int{1, 2} {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("nodes=%d/keys=%d", size, keys), func(b *testing.B) { run(b, size, keys) })
		}
	}
}

// BenchmarkRequire is what a claim costs: one without a node, and one with.
func BenchmarkRequire(b *testing.B) {
	each(b, func(b *testing.B, size, keys int) {
		x, _, _ := filled(b, size, keys)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := x.Require(b.Context(), topology.Request{ClaimName: "data-web-17", Immediate: true}); err != nil {
				b.Fatal(err)
			}
			if _, err := x.Require(b.Context(), topology.Request{ClaimName: "c", SelectedNode: "node-00042"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRequireEncoded adds what it costs to put the requirement on the wire.
func BenchmarkRequireEncoded(b *testing.B) {
	each(b, func(b *testing.B, size, keys int) {
		x, _, _ := filled(b, size, keys)
		var encoder topology.Encoder
		var buffer []byte
		b.ReportAllocs()
		for b.Loop() {
			r, err := x.Require(b.Context(), topology.Request{ClaimName: "data-web-17", Immediate: true})
			if err != nil {
				b.Fatal(err)
			}
			if r, err = encoder.Compact(r); err != nil {
				b.Fatal(err)
			}
			if buffer, err = (proto.MarshalOptions{}).MarshalAppend(buffer[:0], r); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(buffer)), "wire-B")
	})
}

// BenchmarkEvent is what a heartbeat of a Node costs, and one that moves it to another zone and back.
func BenchmarkEvent(b *testing.B) {
	each(b, func(b *testing.B, size, keys int) {
		_, nodes, _ := filled(b, size, keys)
		same, moved := node("node-00042", "zone=z0,host=node-00042"), node("node-00042", "zone=z1,host=node-00042")
		b.ReportAllocs()
		for b.Loop() {
			nodes.apply(same)
			nodes.apply(moved)
		}
	})
}

// BenchmarkRequireAfterJoin is what the first claim after a new node costs.
func BenchmarkRequireAfterJoin(b *testing.B) {
	each(b, func(b *testing.B, size, keys int) {
		x, nodes, csiNodes := filled(b, size, keys)
		csiNodes.apply(csiNode("joins", []string{"zone", "zone host"}[keys-1]))
		b.ReportAllocs()
		for b.Loop() {
			nodes.apply(node("joins", "zone=z9,host=joins"))
			if _, err := x.Require(b.Context(), topology.Request{ClaimName: "data-web-17", Immediate: true}); err != nil {
				b.Fatal(err)
			}
			nodes.remove(node("joins", ""))
			if _, err := x.Require(b.Context(), topology.Request{ClaimName: "data-web-17", Immediate: true}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
