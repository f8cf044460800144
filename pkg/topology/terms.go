package topology

import (
	"fmt"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// Terms is an immutable canonical list of segments, together with the CSI form of each, made once and shared by
// every requirement made from the list. The nil Terms is empty. Safe for concurrent use.
type Terms struct {
	segments []Segment
	// ring holds the CSI form of segments twice over, so that each rotation of the list is a part of it.
	ring []*csi.Topology

	// mu guards parts: allowedTopologies as text → the segments that satisfy them. They are made once, so that claims
	// of one class share them as they share the whole.
	mu    sync.Mutex
	parts map[string]*Terms
}

// maxParts bounds Terms.parts: more classes than these, with different allowedTopologies, do without.
const maxParts = 16

// NewTerms returns the canonical list of segments; those without pairs are left out, as CSI cannot express
// them in a list.
func NewTerms(segments []Segment) *Terms {
	return (*Terms)(nil).Update(nil, segments)
}

// newTerms owns segments, which must be canonical, and forms: what is known of their CSI form, nil for a
// segment that has none yet.
func newTerms(segments []Segment, forms []*csi.Topology) *Terms {
	if len(segments) > 0 && segments[0].IsEmpty() {
		segments, forms = segments[1:], forms[1:]
	}
	n := len(segments)
	ring := make([]*csi.Topology, 2*n)
	copy(ring, forms)
	for i, s := range segments {
		if ring[i] == nil {
			ring[i] = s.CSI()
		}
	}
	copy(ring[n:], ring[:n])
	return &Terms{segments: segments, ring: ring}
}

// Update returns the list without what gone reports and with added, and shares the rest with t, which stays as
// it is. A nil gone drops nothing. It costs one walk over the list.
func (t *Terms) Update(gone func(Segment) bool, added []Segment) *Terms {
	added = Canonical(added)
	merged := make([]Segment, 0, t.Len()+len(added))
	forms := make([]*csi.Topology, 0, t.Len()+len(added))
	next := 0
	add := func(s Segment, form *csi.Topology) {
		merged, forms = append(merged, s), append(forms, form)
	}
	for i, s := range t.Segments() {
		for next < len(added) && Compare(added[next], s) < 0 {
			add(added[next], nil)
			next++
		}
		if next < len(added) && added[next] == s {
			next++
		} else if gone != nil && gone(s) {
			continue
		}
		add(s, t.ring[i])
	}
	for _, s := range added[next:] {
		add(s, nil)
	}
	return newTerms(merged, forms)
}

// Len returns the number of segments.
func (t *Terms) Len() int {
	if t == nil {
		return 0
	}
	return len(t.segments)
}

// Segments returns the list itself: it must not be changed.
func (t *Terms) Segments() []Segment {
	if t == nil {
		return nil
	}
	return t.segments
}

// with returns t with s in it: t itself when it is there already.
func (t *Terms) with(s Segment) *Terms {
	if _, ok := slices.BinarySearchFunc(t.Segments(), s, Compare); ok {
		return t
	}
	return t.Update(nil, []Segment{s})
}

// satisfying returns the segments that satisfy allowed, sharing their CSI form with t.
func (t *Terms) satisfying(allowed []corev1.TopologySelectorTerm) *Terms {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := fmt.Sprintf("%q", allowed)
	if part, ok := t.parts[key]; ok {
		return part
	}
	part := t.Update(func(s Segment) bool { return !Satisfies(s, allowed) }, nil)
	if len(t.parts) < maxParts {
		if t.parts == nil {
			t.parts = map[string]*Terms{}
		}
		t.parts[key] = part
	}
	return part
}

// firstIn returns the place of the first segment whose pairs all occur in s, or -1.
func (t *Terms) firstIn(s Segment) int {
	if t.Len() > 0 && t.segments[0].Len() == s.Len() {
		// Nothing is shorter than s, so only s itself can be in it.
		if i, ok := slices.BinarySearchFunc(t.segments, s, Compare); ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(t.Segments(), func(term Segment) bool { return term.In(s) })
}

// requirement returns the whole list as requisite and its rotation that begins at first as preferred. It
// shares the list: the result must not be changed.
func (t *Terms) requirement(first int) *csi.TopologyRequirement {
	n := t.Len()
	return &csi.TopologyRequirement{
		Requisite: t.ring[:n:n],
		Preferred: t.ring[first : first+n : first+n],
	}
}
