package topology_test

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Four nodes in three zones. A claim of a StatefulSet begins in the zone that its ordinal says; a claim whose pod
// was put on a node begins in the zone of that node; and the volume is bound to where the driver made it.
func Example() {
	zone := func(name string) topology.Segment { return topology.SegmentOf(map[string]string{"zone": name}) }
	facts := topology.Facts{
		Keys:  []string{"zone"},
		Node:  zone("b"),
		Terms: topology.NewTerms([]topology.Segment{zone("a"), zone("b"), zone("c"), zone("b")}),
	}
	show := func(r topology.Request) {
		requirement, err := topology.Require(r, facts)
		if err != nil {
			fmt.Println(err)
			return
		}
		var preferred []topology.Segment
		for _, t := range requirement.GetPreferred() {
			preferred = append(preferred, topology.SegmentOf(t.GetSegments()))
		}
		fmt.Println(preferred)
	}
	show(topology.Request{ClaimName: "data-web-2", Immediate: true})
	show(topology.Request{SelectedNode: "worker-4"})
	show(topology.Request{SelectedNode: "worker-4", Strict: true})

	affinity := topology.Affinity([]*csi.Topology{zone("b").CSI()})
	here, err := topology.Accessible(affinity, zone("a").CSI())
	fmt.Println(affinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values, here, err)
	// Output:
	// [zone=c zone=a zone=b]
	// [zone=b zone=c zone=a]
	// [zone=b]
	// [b] false <nil>
}
