package segments

import (
	"maps"
	"slices"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// terms counts nodes by their term. It is not safe for concurrent use.
type terms struct {
	counts map[topology.Segment]int
	// list is the sorted form of counts as of its last use, nil before the first. Since then came holds the terms that
	// may be missing there, and stale is set when it may hold one that went.
	list  *topology.Terms
	came  map[topology.Segment]bool
	stale bool
}

func newTerms() terms {
	return terms{counts: map[topology.Segment]int{}, came: map[topology.Segment]bool{}}
}

// move counts a node whose term was so and is now like this; had and has say whether it had, and has, one. It reports
// whether the old term is gone with it, and whether the new one came with it.
func (t *terms) move(was topology.Segment, had bool, is topology.Segment, has bool) (gone, came bool) {
	if had && has && was == is {
		return false, false
	}
	return had && t.drop(was), has && t.add(is)
}

// add counts one more node, and reports whether it is the first of its term.
func (t *terms) add(s topology.Segment) bool {
	t.counts[s]++
	if t.counts[s] > 1 {
		return false
	}
	if t.list != nil {
		t.came[s] = true
	}
	return true
}

// drop counts one node less, and reports whether it was the last of its term.
func (t *terms) drop(s topology.Segment) bool {
	t.counts[s]--
	if t.counts[s] > 0 {
		return false
	}
	delete(t.counts, s)
	delete(t.came, s)
	t.stale = true
	return true
}

// current returns the terms as an immutable list: the same one as long as none came or went.
func (t *terms) current() *topology.Terms {
	switch {
	case t.list == nil:
		t.list = topology.NewTerms(slices.Collect(maps.Keys(t.counts)))
	case t.stale:
		t.list = t.list.Update(func(term topology.Segment) bool { return t.counts[term] == 0 }, slices.Collect(maps.Keys(t.came)))
	case len(t.came) > 0:
		t.list = t.list.Update(nil, slices.Collect(maps.Keys(t.came)))
	}
	clear(t.came)
	t.stale = false
	return t.list
}
