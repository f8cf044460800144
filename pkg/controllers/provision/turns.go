package provision

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// turns bounds how many CreateVolume calls run at once from one source (--max-creates-per-source). A claim that gets
// no turn waits here and holds no worker. When there is room, a turn is set aside for the one that waits longest, and
// it is woken.
//
//	take ──▶ has a turn ── leave ──▶ gone, or busy
//	  │          ▲
//	  └─ waits ──┘  unanswered creates first, new ones after them
//
// A driver that copies for longer than a call may take goes on between two calls of one create: such a create is busy,
// and keeps new ones out as if its call were running, for as long as leave says so. Unanswered creates are not kept out by it. They wait only for
// calls, each of which has a deadline, so that none waits for ever.
//
// A nil *turns sets no bound. Safe for concurrent use.
type turns struct {
	limit int
	wake  func(types.UID) // called without the lock

	mu       sync.Mutex
	sources  map[string]*sourceTurns // source.Key → what goes on there; missing: nothing
	of       map[types.UID]string    // claim → its key in sources
	draining bool                    // nobody is woken any more, so nobody waits here
}

// sourceTurns are the claims of one source. A claim is in one place at most.
type sourceTurns struct {
	running map[types.UID]bool // have a turn (true), or one is set aside for them (false)
	busy    map[types.UID]bool // between two calls, and the driver goes on
	again   []types.UID        // wait; their create is unanswered
	first   []types.UID        // wait; no call was made yet
}

// newTurns returns nil when limit is 0: no bound.
func newTurns(limit int, wake func(types.UID)) *turns {
	if limit <= 0 {
		return nil
	}
	return &turns{limit: limit, wake: wake, sources: map[string]*sourceTurns{}, of: map[types.UID]string{}}
}

// expect says that an earlier process has left a create of the claim, which the driver may be busy with.
func (t *turns) expect(uid types.UID, key string) {
	if t == nil || key == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at(key).busy[uid], t.of[uid] = true, key
}

// at returns what goes on at a source. mu is held.
func (t *turns) at(key string) *sourceTurns {
	s := t.sources[key]
	if s == nil {
		s = &sourceTurns{running: map[types.UID]bool{}, busy: map[types.UID]bool{}}
		t.sources[key] = s
	}
	return s
}

// take reports whether the claim may make a call now; give the turn back with leave. If not, it waits and is woken.
// key is that of source.Key, "" for none; unanswered says that an earlier call of the create may be at work.
func (t *turns) take(uid types.UID, key string, unanswered bool) bool {
	if t == nil || key == "" {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.at(key)
	place := &s.first
	if unanswered {
		place = &s.again
	}
	if slices.Contains(*place, uid) {
		return false
	}
	if _, has := s.running[uid]; has {
		s.running[uid] = true
		return true
	}
	s.remove(uid)
	if s.room(t.limit, unanswered) {
		s.running[uid], t.of[uid] = true, key
		return true
	}
	if !t.draining {
		*place, t.of[uid] = append(*place, uid), key
	}
	return false
}

// leave takes the claim out, whatever it has or waits for. busy says that the driver goes on with its create.
func (t *turns) leave(uid types.UID, busy bool) {
	if t == nil {
		return
	}
	for _, next := range t.leaving(uid, busy) {
		t.wake(next)
	}
}

// leaving is leave, and returns whom to wake.
func (t *turns) leaving(uid types.UID, busy bool) []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, known := t.of[uid]
	if !known {
		return nil
	}
	s := t.sources[key]
	s.remove(uid)
	if busy {
		s.busy[uid] = true
	} else {
		delete(t.of, uid)
	}
	woken := s.admit(t.limit)
	if len(s.running)+len(s.busy)+len(s.again)+len(s.first) == 0 {
		delete(t.sources, key)
	}
	return woken
}

// drain is for the time when the queue has stopped and wakes nobody. Only the calls that run keep their turns: who
// waits, or has a turn set aside, has to ask again.
func (t *turns) drain() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	for uid, key := range t.of {
		if s := t.sources[key]; !s.running[uid] {
			s.remove(uid)
			delete(t.of, uid)
		}
	}
	maps.DeleteFunc(t.sources, func(_ string, s *sourceTurns) bool { return len(s.running) == 0 })
}

// waiting returns how many claims wait for a turn.
func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for s := range maps.Values(t.sources) {
		n += len(s.again) + len(s.first)
	}
	return n
}

// register shows how many wait.
func (t *turns) register(registerer prometheus.Registerer) error {
	if t == nil || registerer == nil {
		return nil
	}
	return registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Subsystem: "controller", Name: "creates_waiting_for_source",
		Help: "Claims that wait because as many volumes as may be are being made from their source.",
	}, func() float64 { return float64(t.waiting()) }))
}

func (s *sourceTurns) room(limit int, unanswered bool) bool {
	if unanswered {
		return len(s.running) < limit
	}
	return len(s.running)+len(s.busy) < limit
}

// admit sets turns aside for those that wait, as far as there is room, and returns them.
func (s *sourceTurns) admit(limit int) []types.UID {
	var admitted []types.UID
	for len(s.again) > 0 && s.room(limit, true) {
		admitted, s.again = append(admitted, s.again[0]), s.again[1:]
		s.running[admitted[len(admitted)-1]] = false
	}
	for len(s.first) > 0 && s.room(limit, false) {
		admitted, s.first = append(admitted, s.first[0]), s.first[1:]
		s.running[admitted[len(admitted)-1]] = false
	}
	return admitted
}

func (s *sourceTurns) remove(uid types.UID) {
	delete(s.running, uid)
	delete(s.busy, uid)
	is := func(other types.UID) bool { return other == uid }
	s.again, s.first = slices.DeleteFunc(s.again, is), slices.DeleteFunc(s.first, is)
}
