package segments

import (
	"maps"
	"slices"
	"strings"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// table is what is known of all nodes. An event costs a few map operations for each set of topology keys in use
// that is part of the node's own, which is nearly always just that one. It is not safe for concurrent use.
//
//	CSINode ─┬─▶ keySet.terms, of each set in use that the CSINode's keys contain: for claims with a selected node
//	Node ────┴─▶ segments, of exactly the CSINode's keys: for claims without one, and for storage capacity
type table struct {
	// nodes holds each name that a Node or a CSINode has.
	nodes map[string]record
	// sets holds the key sets in use: keys joined by NUL → set. The set without keys is not among them.
	sets map[string]*keySet
	// keys counts in how many sets in use a key is.
	keys map[string]int
	// segments are those of all nodes.
	segments terms
	// changed holds the segments that came (true) or went (false) since takeChanges.
	changed map[topology.Segment]bool
}

// record is what is kept of one name.
type record struct {
	exists, csiNode, registered bool
	// labels are the topology labels of the Node.
	labels topology.Segment
	// set holds the keys that the driver registered; nil when it did not, or registered none.
	set *keySet
}

// keySet is a set of topology keys that the driver registered on some node.
type keySet struct {
	id   string
	keys []string
	// registered counts the CSINodes with exactly these keys.
	registered int
	// parts are the sets in use that are subsets of this one, itself among them.
	parts []*keySet
	// terms are those of the nodes on which the driver registered all of keys, and which have them as labels.
	terms terms
}

func newTable() *table {
	return &table{
		nodes:    map[string]record{},
		sets:     map[string]*keySet{},
		keys:     map[string]int{},
		segments: newTerms(),
		changed:  map[topology.Segment]bool{},
	}
}

// setNode takes in a Node with its topology labels; exists is false for one that was deleted.
func (t *table) setNode(name string, exists bool, labels topology.Segment) {
	before := t.nodes[name]
	after := before
	after.exists, after.labels = exists, labels
	t.put(name, before, after)
}

// setCSINode takes in a CSINode; keys are those of the driver, if it is registered. They must be as KeySet
// returns them.
func (t *table) setCSINode(name string, exists, registered bool, keys []string) {
	before := t.nodes[name]
	after := before
	after.csiNode, after.registered = exists, exists && registered
	after.set = nil
	if after.registered && len(keys) > 0 {
		after.set = t.use(keys)
	}
	t.put(name, before, after)
	t.release(before.set)
}

// put replaces a node and counts its terms.
func (t *table) put(name string, before, after record) {
	for _, s := range before.parts() {
		s.move(before, after)
	}
	for _, s := range after.parts() {
		if !before.in(s) {
			s.move(before, after)
		}
	}
	was, had := before.member().Segment()
	is, has := after.member().Segment()
	gone, came := t.segments.move(was, had, is, has)
	if gone {
		t.note(was, false)
	}
	if came {
		t.note(is, true)
	}
	if after == (record{}) {
		delete(t.nodes, name)
		return
	}
	t.nodes[name] = after
}

// note remembers that a segment came or went. What came and went since takeChanges is no change.
func (t *table) note(s topology.Segment, came bool) {
	if _, ok := t.changed[s]; ok {
		delete(t.changed, s)
		return
	}
	t.changed[s] = came
}

// use returns the set of keys with one more CSINode in it, made when it is new.
func (t *table) use(keys []string) *keySet {
	id := strings.Join(keys, "\x00")
	s, ok := t.sets[id]
	if !ok {
		s = t.newSet(id, keys)
		t.sets[id] = s
		for _, key := range keys {
			t.keys[key]++
		}
	}
	s.registered++
	return s
}

// newSet returns a set of keys with its terms. It costs a walk over the nodes when a set in use contains the keys.
func (t *table) newSet(id string, keys []string) *keySet {
	s := &keySet{id: id, keys: keys, terms: newTerms()}
	s.parts = []*keySet{s}
	isPart := false
	for _, other := range t.sets {
		if other.contains(keys) {
			other.parts = append(other.parts, s)
			isPart = true
		} else if s.contains(other.keys) {
			s.parts = append(s.parts, other)
		}
	}
	if isPart {
		for _, n := range t.nodes {
			s.move(record{}, n)
		}
	}
	return s
}

// release takes one CSINode out of a set, and the set out of use after the last.
func (t *table) release(s *keySet) {
	if s == nil {
		return
	}
	if s.registered--; s.registered > 0 {
		return
	}
	delete(t.sets, s.id)
	for _, other := range t.sets {
		other.parts = slices.DeleteFunc(other.parts, func(part *keySet) bool { return part == s })
	}
	for _, key := range s.keys {
		if t.keys[key]--; t.keys[key] == 0 {
			delete(t.keys, key)
		}
	}
}

// takeChanges returns what came and went since the last call, sorted.
func (t *table) takeChanges() (added, removed []topology.Segment) {
	for s, came := range t.changed {
		if came {
			added = append(added, s)
		} else {
			removed = append(removed, s)
		}
	}
	clear(t.changed)
	slices.SortFunc(added, topology.Compare)
	slices.SortFunc(removed, topology.Compare)
	return added, removed
}

// list returns the segments, sorted, in a new slice.
func (t *table) list() []topology.Segment {
	return slices.SortedFunc(maps.Keys(t.segments.counts), topology.Compare)
}

// registeredKeys returns the keys that the driver registered on any node, sorted, in a new slice.
func (t *table) registeredKeys() []string { return slices.Sorted(maps.Keys(t.keys)) }

// allTerms returns a term for each node that has the labels for its own keys.
func (t *table) allTerms() *topology.Terms {
	if len(t.sets) == 1 {
		// Claims with and without a selected node then share one list.
		for _, s := range t.sets {
			return s.terms.current()
		}
	}
	return t.segments.current()
}

// termsOf returns the terms of the nodes on which the driver registered all of keys. For keys that are no set in use
// it costs a walk over the nodes.
func (t *table) termsOf(keys []string) *topology.Terms {
	if s, ok := t.sets[strings.Join(keys, "\x00")]; ok {
		return s.terms.current()
	}
	var list []topology.Segment
	for _, n := range t.nodes {
		if n.set == nil || !n.set.contains(keys) {
			continue
		}
		if term, ok := n.labels.Project(keys); ok {
			list = append(list, term)
		}
	}
	return topology.NewTerms(list)
}

// member returns what the pure room wants to know of a node.
func (n record) member() topology.Member {
	m := topology.Member{NodeExists: n.exists, CSINodeExists: n.csiNode, Registered: n.registered, Labels: n.labels}
	if n.set != nil {
		m.Keys = n.set.keys
	}
	return m
}

// parts returns the sets in use whose terms the node may add to.
func (n record) parts() []*keySet {
	if n.set == nil {
		return nil
	}
	return n.set.parts
}

// in reports whether the driver registered all keys of a set in use on the node.
func (n record) in(s *keySet) bool { return slices.Contains(n.parts(), s) }

// term returns the term that the node adds to a set in use.
func (n record) term(s *keySet) (topology.Segment, bool) {
	if !n.in(s) {
		return topology.Segment{}, false
	}
	return n.labels.Project(s.keys)
}

// contains reports whether all of keys are in the set.
func (s *keySet) contains(keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return !slices.Contains(s.keys, key) })
}

// move counts the term of a node that was so and is now like this.
func (s *keySet) move(before, after record) {
	was, had := before.term(s)
	is, has := after.term(s)
	s.terms.move(was, had, is, has)
}
