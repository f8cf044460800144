package capacity

import (
	"testing"
)

// checkBook compares what the book keeps incrementally with what follows from its parts.
func (s *stage) checkBook() {
	s.t.Helper()
	s.controller.mu.Lock()
	defer s.controller.mu.Unlock()
	checkBook(s.t, s.controller.book)
}

func checkBook(t *testing.T, b *book) {
	t.Helper()
	want := counts{}
	desired, objects := 0, 0
	for segment := range b.segments {
		for class, terms := range b.classes {
			if !allowed(terms, segment) {
				continue
			}
			want.goal++
			if it := b.items[Key{Class: class, Segment: segment}]; it == nil || !it.desired {
				t.Errorf("the pair of %s and %s is not desired", class, segment)
			}
		}
	}
	for key, it := range b.items {
		if it.key != key {
			t.Errorf("item %s is kept as %s", it.key, key)
		}
		if it.desired {
			desired++
		} else if len(it.objects) == 0 {
			t.Errorf("item %s is kept for nothing", key)
		}
		survivors := 0
		for _, o := range it.objects {
			objects++
			if b.byUID[o.last.UID] != it {
				t.Errorf("object %s is not found by its UID", o.last.Name)
			}
			switch {
			case o == it.survivor() && o.observed != nil:
				survivors++
			case o != it.survivor() && o.observed != nil:
				want.obsolete++
			}
		}
		want.current += survivors
		if it.resting != nil && (it.queued || it.waiting || !it.desired) {
			t.Errorf("item %s is in the poll line and elsewhere", key)
		}
	}
	if b.counts != want {
		t.Errorf("counts %+v, want %+v", b.counts, want)
	}
	if desired != want.goal {
		t.Errorf("%d items are desired, want %d", desired, want.goal)
	}
	if objects != len(b.byUID) {
		t.Errorf("%d UIDs are known, want %d", len(b.byUID), objects)
	}
	pairs := 0
	for segment := range b.segments {
		pairs += segment.Len()
		for key, value := range segment.All() {
			if _, there := b.byPair[pair{key, value}][segment]; !there {
				t.Errorf("segment %s is not found by %s=%s", segment, key, value)
			}
		}
	}
	for _, segments := range b.byPair {
		pairs -= len(segments)
	}
	if pairs != 0 {
		t.Errorf("the index of pairs has %d entries too few", pairs)
	}
}
