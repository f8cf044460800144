package capacity

import (
	"container/list"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// book is all that the controller knows: what should be there (segments × eligible classes), what is there
// (objects), and which pairs need a turn. Events only change the book; a worker reads one pair from it. It
// does no I/O and needs a lock around it.
//
// The states of a pair that is in the book:
//
//	           want                 begin                 end (ok)
//	resting ───────────▶ queued ──────────▶ with a worker ─────────▶ resting, last in the poll line
//	   ▲                    ▲                     │
//	   └─ first in the line │                     │ end (failed)
//	      (poll) ───────────┘◀───── want ────  waiting for its back-off, which ends in begin
//
// So a pair is in the queue at most once, waits for a back-off at most once, and a poll never finds one that
// is queued, with a worker or waiting.
type book struct {
	segments map[topology.Segment]struct{}
	// byPair: one key and value of a segment → the segments that have it.
	byPair map[pair]map[topology.Segment]struct{}
	// classes: name of an eligible class → what it allows; nil allows everything.
	classes map[string][]corev1.TopologySelectorTerm
	// items: every pair that is desired or has an object.
	items map[Key]*item
	// byUID: UID of a known object → its pair.
	byUID map[types.UID]*item
	// line holds the resting items, the one that rests longest first.
	line *list.List
	// wake holds the keys that need a turn and have not been handed over yet.
	wake []Key

	counts counts
}

// counts are the numbers that the metrics show.
type counts struct{ goal, current, obsolete int }

type pair struct{ key, value string }

// item is one pair.
type item struct {
	key     Key
	desired bool
	// objects are the managed objects for the pair: normally one, more when there are duplicates, none when
	// it is not created yet.
	objects []*object
	// queued: the loop has it, or gets it with the next wake. waiting: its back-off runs.
	queued, waiting bool
	// resting is its place in the line, nil when it is not in it; since is when it got there.
	resting *list.Element
	since   time.Time
	// shown is what the item adds to the book's counts.
	shown counts
}

func newBook() *book {
	return &book{
		segments: map[topology.Segment]struct{}{},
		byPair:   map[pair]map[topology.Segment]struct{}{},
		classes:  map[string][]corev1.TopologySelectorTerm{},
		items:    map[Key]*item{},
		byUID:    map[types.UID]*item{},
		line:     list.New(),
	}
}

// changeSegments adds and removes segments; those that are there, or are not, are left out.
func (b *book) changeSegments(added, removed []topology.Segment) {
	for _, segment := range removed {
		if _, there := b.segments[segment]; there {
			b.removeSegment(segment)
		}
	}
	for _, segment := range added {
		if _, there := b.segments[segment]; !there {
			b.addSegment(segment)
		}
	}
}

func (b *book) addSegment(segment topology.Segment) {
	b.segments[segment] = struct{}{}
	for key, value := range segment.All() {
		p := pair{key, value}
		if b.byPair[p] == nil {
			b.byPair[p] = map[topology.Segment]struct{}{}
		}
		b.byPair[p][segment] = struct{}{}
	}
	for class, terms := range b.classes {
		if allowed(terms, segment) {
			b.desire(Key{Class: class, Segment: segment})
		}
	}
}

func (b *book) removeSegment(segment topology.Segment) {
	delete(b.segments, segment)
	for key, value := range segment.All() {
		p := pair{key, value}
		delete(b.byPair[p], segment)
		if len(b.byPair[p]) == 0 {
			delete(b.byPair, p)
		}
	}
	for class := range b.classes {
		b.release(Key{Class: class, Segment: segment})
	}
}

// setClass makes a class eligible, or takes its change in, and asks for all its pairs again.
func (b *book) setClass(class string, terms []corev1.TopologySelectorTerm) {
	b.classes[class] = terms
	for segment := range b.segments {
		key := Key{Class: class, Segment: segment}
		if allowed(terms, segment) {
			b.desire(key)
		} else {
			b.release(key)
		}
	}
}

// removeClass takes in that a class is gone or not eligible any more. It does nothing for any other class.
func (b *book) removeClass(class string) {
	if _, there := b.classes[class]; !there {
		return
	}
	delete(b.classes, class)
	for segment := range b.segments {
		b.release(Key{Class: class, Segment: segment})
	}
}

// desire puts a pair into the desired set and gives it a turn.
func (b *book) desire(key Key) {
	it := b.item(key)
	it.desired = true
	b.settle(it)
	b.want(it)
}

// release takes a pair out of the desired set; what it has left is deleted.
func (b *book) release(key Key) {
	it, there := b.items[key]
	if !there {
		return
	}
	it.desired = false
	b.rest(it, false)
	// A create that the watch has not shown yet is nobody's now: the watch will show it as obsolete.
	for _, o := range slices.Clone(it.objects) {
		if o.observed == nil {
			b.remove(it, o)
		}
	}
	b.settle(it)
}

// item returns the pair's item and makes it when it is not there.
func (b *book) item(key Key) *item {
	it, there := b.items[key]
	if !there {
		it = &item{key: key}
		b.items[key] = it
	}
	return it
}

// settle brings the book in line with an item that changed: it counts, gets a turn when something of it has
// to be deleted, and is forgotten when nothing is left of it.
func (b *book) settle(it *item) {
	if surplus := b.count(it); surplus {
		b.want(it)
	}
	if !it.desired && len(it.objects) == 0 {
		b.rest(it, false)
		delete(b.items, it.key)
	}
}

// count brings the counts in line with the item, and reports whether something of it has to be deleted.
func (b *book) count(it *item) (surplus bool) {
	var shown counts
	survivor := it.survivor()
	if it.desired {
		shown.goal = 1
		if survivor != nil && survivor.observed != nil {
			shown.current = 1
		}
	}
	for _, o := range it.objects {
		if o == survivor || o.observed == nil {
			continue
		}
		shown.obsolete++
		surplus = surplus || o.deletable()
	}
	b.counts.goal += shown.goal - it.shown.goal
	b.counts.current += shown.current - it.shown.current
	b.counts.obsolete += shown.obsolete - it.shown.obsolete
	it.shown = shown
	return surplus
}

// want gives the item a turn, unless it is to get one anyway.
func (b *book) want(it *item) {
	if it.queued {
		return
	}
	it.queued = true
	b.rest(it, false)
	b.wake = append(b.wake, it.key)
}

// rest puts the item at the end of the poll line, or takes it out.
func (b *book) rest(it *item, resting bool) {
	switch {
	case resting && it.resting == nil:
		it.resting = b.line.PushBack(it)
	case !resting && it.resting != nil:
		b.line.Remove(it.resting)
		it.resting = nil
	}
}

// takeWake returns the keys that need a turn, sorted, and forgets them.
func (b *book) takeWake() []Key {
	wake := b.wake
	b.wake = nil
	slices.SortFunc(wake, compareKeys)
	return wake
}

// begin starts a turn. It is false when there is nothing to do: the pair is gone, or the turn is left over
// from a back-off that an event made unnecessary.
func (b *book) begin(key Key) bool {
	it, there := b.items[key]
	if !there || (!it.queued && !it.waiting) {
		return false
	}
	it.queued, it.waiting = false, false
	b.rest(it, false)
	return true
}

// end finishes a turn; failed means that the loop brings the key back after its back-off.
func (b *book) end(key Key, failed bool, now time.Time) {
	it, there := b.items[key]
	if !there {
		return
	}
	if failed {
		it.waiting = true
		return
	}
	if it.desired && !it.queued {
		it.since = now
		b.rest(it, true)
	}
}
