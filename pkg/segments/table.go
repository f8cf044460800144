package segments

import (
	"maps"
	"slices"
	"strings"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// table is what is known of all nodes. An event costs a few map operations for each set of topology keys in use,
// which is nearly always one. It is not safe for concurrent use.
//
//	CSINode ──▶ record.set ──▶ keySet.registered      which keys a claim without a node uses
//	Node ─────▶ record.labels ──▶ keySet.terms        what requirements list, whether the driver runs there or not
//	both ─────▶ its segment ──▶ segments            what storage capacity is published for
type table struct {
	// nodes holds each name that a Node or a CSINode has.
	nodes map[string]record
	// sets holds the key sets in use: keys joined by NUL → set. The set without keys is not among them.
	sets map[string]*keySet
	// keys counts in how many sets in use a key is.
	keys map[string]int
	// segments counts the nodes of each segment.
	segments map[topology.Segment]int
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
	// terms counts the Nodes that have all the keys as labels, by their values.
	terms map[topology.Segment]int
	// list is the sorted form of terms as of its last use; came holds terms that may be missing there, and stale is
	// set when it may hold one that went.
	list  *topology.Terms
	came  map[topology.Segment]bool
	stale bool
}

func newTable() *table {
	return &table{
		nodes:    map[string]record{},
		sets:     map[string]*keySet{},
		keys:     map[string]int{},
		segments: map[topology.Segment]int{},
		changed:  map[topology.Segment]bool{},
	}
}

// setNode takes in a Node with its topology labels; exists is false for one that was deleted.
func (t *table) setNode(name string, exists bool, labels topology.Segment) {
	before := t.nodes[name]
	after := before
	after.exists, after.labels = exists, labels
	for _, s := range t.sets {
		s.move(before, after)
	}
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
	t.release(before.set)
	t.put(name, before, after)
}

// put replaces a node and counts its segment.
func (t *table) put(name string, before, after record) {
	if old, ok := before.member().Segment(); ok {
		t.count(old, -1)
	}
	if now, ok := after.member().Segment(); ok {
		t.count(now, +1)
	}
	if after == (record{}) {
		delete(t.nodes, name)
		return
	}
	t.nodes[name] = after
}

func (t *table) count(s topology.Segment, by int) {
	before := t.segments[s]
	after := before + by
	if after == 0 {
		delete(t.segments, s)
	} else {
		t.segments[s] = after
	}
	if (before == 0) == (after == 0) {
		return
	}
	// What came and went since the last look is no change.
	if _, ok := t.changed[s]; ok {
		delete(t.changed, s)
		return
	}
	t.changed[s] = after > 0
}

// use returns the set of keys with one more CSINode in it, made when it is new.
func (t *table) use(keys []string) *keySet {
	id := strings.Join(keys, "\x00")
	s, ok := t.sets[id]
	if !ok {
		s = &keySet{id: id, keys: keys, terms: map[topology.Segment]int{}, came: map[topology.Segment]bool{}}
		for _, n := range t.nodes {
			s.move(record{}, n)
		}
		t.sets[id] = s
		for _, key := range keys {
			t.keys[key]++
		}
	}
	s.registered++
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
	return slices.SortedFunc(maps.Keys(t.segments), topology.Compare)
}

// usual returns the set that most CSINodes registered: of several, the one with the fewest keys, and of these
// the first by name. Nil when there is none.
func (t *table) usual() *keySet {
	var usual *keySet
	for _, s := range t.sets {
		if usual == nil || s.registered > usual.registered || s.registered == usual.registered && s.before(usual) {
			usual = s
		}
	}
	return usual
}

// termsOf returns the terms for any keys, also for those of no set in use, which costs a walk over the nodes.
func (t *table) termsOf(keys []string) *topology.Terms {
	if s, ok := t.sets[strings.Join(keys, "\x00")]; ok {
		return s.current()
	}
	var terms []topology.Segment
	for _, n := range t.nodes {
		if s, ok := n.labels.Project(keys); ok && n.exists {
			terms = append(terms, s)
		}
	}
	return topology.NewTerms(terms)
}

// member returns what the pure room wants to know of a node.
func (n record) member() topology.Member {
	m := topology.Member{NodeExists: n.exists, CSINodeExists: n.csiNode, Registered: n.registered, Labels: n.labels}
	if n.set != nil {
		m.Keys = n.set.keys
	}
	return m
}

func (s *keySet) before(other *keySet) bool {
	if len(s.keys) != len(other.keys) {
		return len(s.keys) < len(other.keys)
	}
	return slices.Compare(s.keys, other.keys) < 0
}

// move counts a node that was so and is now like this.
func (s *keySet) move(before, after record) {
	was, wasIn := before.labels.Project(s.keys)
	is, isIn := after.labels.Project(s.keys)
	wasIn, isIn = wasIn && before.exists, isIn && after.exists
	if wasIn && isIn && was == is {
		return
	}
	if wasIn {
		if s.terms[was]--; s.terms[was] == 0 {
			delete(s.terms, was)
			delete(s.came, was)
			s.stale = true
		}
	}
	if isIn {
		if s.terms[is]++; s.terms[is] == 1 {
			s.came[is] = true
		}
	}
}

// current returns the terms as an immutable list: the same one as long as none came or went.
func (s *keySet) current() *topology.Terms {
	if s.list != nil && !s.stale && len(s.came) == 0 {
		return s.list
	}
	var gone func(topology.Segment) bool
	if s.stale {
		gone = func(term topology.Segment) bool { return s.terms[term] == 0 }
	}
	s.list = s.list.Update(gone, slices.Collect(maps.Keys(s.came)))
	clear(s.came)
	s.stale = false
	return s.list
}
