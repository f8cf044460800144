package segments

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Fixed is the one segment of node deployment, as the driver of this node reported it at the start. It never
// changes and is always synced. Safe for concurrent use.
type Fixed struct {
	node    string
	segment topology.Segment
	keys    []string
	terms   *topology.Terms

	expansions topology.Expansions
}

// NewFixed returns the segment of a node whose driver reports local as its topology; nil: the segment without pairs.
func NewFixed(node string, local *csi.Topology) *Fixed {
	segment := topology.SegmentOf(local.GetSegments())
	f := &Fixed{node: node, segment: segment, terms: topology.NewTerms([]topology.Segment{segment})}
	for key := range segment.All() {
		f.keys = append(f.keys, key)
	}
	return f
}

// Require returns the accessibility requirement for a request, nil for none; it is shared and must not be
// changed. Every other node is gone, as topology.ErrNodeGone says.
func (f *Fixed) Require(_ context.Context, r topology.Request) (*csi.TopologyRequirement, error) {
	facts := topology.Facts{Keys: f.keys, Terms: f.terms, Expansions: &f.expansions}
	if r.SelectedNode != "" {
		var err error
		if facts.Node, err = f.Member(r.SelectedNode).Select(r.SelectedNode); err != nil {
			return nil, err
		}
	}
	return topology.Require(r, facts)
}

// Member returns what is known of a node: everything of our own, nothing of others.
func (f *Fixed) Member(node string) topology.Member {
	if node != f.node {
		return topology.Member{}
	}
	return topology.Member{NodeExists: true, CSINodeExists: true, Registered: true, Keys: f.keys, Labels: f.segment}
}

// KeysOf returns the topology keys of our own node, sorted; nil for others. The slice must not be changed.
func (f *Fixed) KeysOf(node string) []string { return f.Member(node).Keys }

// Segments returns the one segment, in a new slice.
func (f *Fixed) Segments() []topology.Segment { return []topology.Segment{f.segment} }

// AddHandler calls changed once, before it returns, with the one segment as added.
func (f *Fixed) AddHandler(changed func(added, removed []topology.Segment)) {
	changed(f.Segments(), nil)
}

// HasSynced is true.
func (f *Fixed) HasSynced() bool { return true }

// Run returns when ctx has ended.
func (f *Fixed) Run(ctx context.Context) { <-ctx.Done() }
