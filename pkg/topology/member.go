package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Member is what is known of one node and of the driver on it. The zero value: nothing is there.
type Member struct {
	// NodeExists and CSINodeExists say whether the two objects of that name are there.
	NodeExists, CSINodeExists bool
	// Registered says whether the CSINode lists the driver.
	Registered bool
	// Keys are the topology keys that the driver registered there, sorted and without duplicates. Nil: none.
	Keys []string
	// Labels are those labels of the Node that may be topology; others may be among them.
	Labels Segment
}

// Segment returns the segment that the node is part of, as storage capacity sees it: false when the node or
// the driver on it is missing, or a label is not there (yet). A driver without keys has the segment without pairs.
func (m Member) Segment() (Segment, bool) {
	if !m.NodeExists || !m.CSINodeExists || !m.Registered {
		return Segment{}, false
	}
	return m.Labels.Project(m.Keys)
}

// Select returns the segment of the node as the selected node of a claim. The error has ErrNodeGone in its
// chain when the Node or the CSINode is not there.
func (m Member) Select(node string) (Segment, error) {
	if !m.CSINodeExists {
		return Segment{}, fmt.Errorf("read CSINode %q of the selected node: not found: %w", node, ErrNodeGone)
	}
	if !m.Registered || len(m.Keys) == 0 {
		return Segment{}, fmt.Errorf("no topology key found on CSINode %q: the driver is not registered there or has none", node)
	}
	if !m.NodeExists {
		return Segment{}, fmt.Errorf("read the selected node %q with topology keys [%s]: not found: %w", node, strings.Join(m.Keys, " "), ErrNodeGone)
	}
	segment, ok := m.Labels.Project(m.Keys)
	if !ok {
		return Segment{}, fmt.Errorf("topology labels of the selected node %q are {%s}, expected are the keys [%s]",
			node, m.Labels, strings.Join(m.Keys, " "))
	}
	return segment, nil
}

// KeySet returns keys sorted and without duplicates, in a new slice; nil when there are none.
func KeySet(keys []string) []string {
	if len(keys) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(keys))
	return slices.Compact(sorted)
}

// Restrict returns the segment of those pairs whose key is among keys.
func Restrict(pairs map[string]string, keys func(string) bool) Segment {
	var list []pair
	for key, value := range pairs {
		if keys(key) {
			list = append(list, pair{key, value})
		}
	}
	return segmentOfPairs(list)
}
