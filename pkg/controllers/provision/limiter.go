package provision

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// limiter bounds how many CreateVolume calls with one key run at once: calls for volumes from one source
// (--max-creates-per-source), or calls for operations that an earlier process left. A claim that is refused waits here and
// holds no worker. When a place is free it is reserved for the claim that has waited longest, and that claim is woken.
//
//	tryAcquire ──▶ holds a place ── release ──▶ gone, or busy
//	  │                 ▲
//	  └── waits ────────┘  retries first, first calls after them
//
// A driver may go on copying between two calls of one operation. Such an operation is busy, and keeps first calls out as if
// its call were running. Retries are not kept out by it: they wait for calls only, each of which has a deadline, so that
// none waits for ever.
//
// A nil *limiter sets no bound. Safe for concurrent use.
type limiter struct {
	limit int
	wake  func(types.UID) // called without the lock

	mu       sync.Mutex
	keys     map[string]*keyState // missing: nothing runs or waits with that key
	keyOf    map[types.UID]string // claim → its key in keys
	draining bool                 // nobody is woken any more, so nobody waits here
}

// keyState are the claims with one key. A claim is in one of the four at most.
type keyState struct {
	places     map[types.UID]bool // true: its call runs; false: the place is reserved for it
	busy       map[types.UID]bool // between two calls, and the driver goes on
	retries    []types.UID        // wait; an earlier call may be at work
	firstCalls []types.UID        // wait; no call was made yet
}

// newLimiter returns nil when limit is 0: no bound.
func newLimiter(limit int, wake func(types.UID)) *limiter {
	if limit <= 0 {
		return nil
	}
	return &limiter{limit: limit, wake: wake, keys: map[string]*keyState{}, keyOf: map[types.UID]string{}}
}

// expectBusy says that an earlier process has left an operation of the claim, which the driver may be busy with.
func (l *limiter) expectBusy(uid types.UID, key string) {
	if l == nil || key == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at(key).busy[uid], l.keyOf[uid] = true, key
}

// at returns the state of a key. mu is held.
func (l *limiter) at(key string) *keyState {
	s := l.keys[key]
	if s == nil {
		s = &keyState{places: map[types.UID]bool{}, busy: map[types.UID]bool{}}
		l.keys[key] = s
	}
	return s
}

// tryAcquire reports whether the claim may make a call now; give the place back with release. If not, it waits and is woken.
// The key "" has no bound. retry says that an earlier call of the operation may be at work.
func (l *limiter) tryAcquire(uid types.UID, key string, retry bool) bool {
	if l == nil || key == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.at(key)
	queue := &s.firstCalls
	if retry {
		queue = &s.retries
	}
	if slices.Contains(*queue, uid) {
		return false
	}
	if _, holds := s.places[uid]; holds {
		s.places[uid] = true
		return true
	}
	s.remove(uid)
	if s.hasPlace(l.limit, retry) {
		s.places[uid], l.keyOf[uid] = true, key
		return true
	}
	if !l.draining {
		*queue, l.keyOf[uid] = append(*queue, uid), key
	}
	return false
}

// release takes the claim out, whatever it holds or waits for. busy says that the driver goes on with its operation.
func (l *limiter) release(uid types.UID, busy bool) {
	if l == nil {
		return
	}
	for _, next := range l.releaseLocked(uid, busy) {
		l.wake(next)
	}
}

// releaseLocked is release, and returns whom to wake.
func (l *limiter) releaseLocked(uid types.UID, busy bool) []types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	key, known := l.keyOf[uid]
	if !known {
		return nil
	}
	s := l.keys[key]
	s.remove(uid)
	if busy {
		s.busy[uid] = true
	} else {
		delete(l.keyOf, uid)
	}
	woken := s.reserve(l.limit)
	if len(s.places)+len(s.busy)+len(s.retries)+len(s.firstCalls) == 0 {
		delete(l.keys, key)
	}
	return woken
}

// drain is for the time when the queue has stopped and wakes nobody. Only the calls that run keep their places: whoever
// waits, or has a place reserved, has to ask again.
func (l *limiter) drain() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	for uid, key := range l.keyOf {
		if s := l.keys[key]; !s.places[uid] {
			s.remove(uid)
			delete(l.keyOf, uid)
		}
	}
	maps.DeleteFunc(l.keys, func(_ string, s *keyState) bool { return len(s.places) == 0 })
}

// waiting returns how many claims wait for a place.
func (l *limiter) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for s := range maps.Values(l.keys) {
		n += len(s.retries) + len(s.firstCalls)
	}
	return n
}

// register shows how many wait for their source.
func (l *limiter) register(registerer prometheus.Registerer) error {
	if l == nil || registerer == nil {
		return nil
	}
	return registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Subsystem: "controller", Name: "creates_waiting_for_source",
		Help: "Claims that wait because the limit of concurrent creates for their source is reached.",
	}, func() float64 { return float64(l.waiting()) }))
}

func (s *keyState) hasPlace(limit int, retry bool) bool {
	if retry {
		return len(s.places) < limit
	}
	return len(s.places)+len(s.busy) < limit
}

// reserve reserves free places for those that wait, and returns them.
func (s *keyState) reserve(limit int) []types.UID {
	var reserved []types.UID
	for len(s.retries) > 0 && s.hasPlace(limit, true) {
		reserved, s.retries = append(reserved, s.retries[0]), s.retries[1:]
		s.places[reserved[len(reserved)-1]] = false
	}
	for len(s.firstCalls) > 0 && s.hasPlace(limit, false) {
		reserved, s.firstCalls = append(reserved, s.firstCalls[0]), s.firstCalls[1:]
		s.places[reserved[len(reserved)-1]] = false
	}
	return reserved
}

func (s *keyState) remove(uid types.UID) {
	delete(s.places, uid)
	delete(s.busy, uid)
	is := func(other types.UID) bool { return other == uid }
	s.retries, s.firstCalls = slices.DeleteFunc(s.retries, is), slices.DeleteFunc(s.firstCalls, is)
}
