package nodelocal

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RaceConfig describes a Race.
type RaceConfig struct {
	// Base is the longest first wait (--node-deployment-base-delay). Zero: no wait.
	Base time.Duration
	// Max bounds the wait (--node-deployment-max-delay).
	Max time.Duration
	// Random returns a number from 0 up to, not including, 1. It is not called concurrently. Required.
	Random func() float64
}

// Race keeps, for each claim that this node competes for, how long it still has to wait. The first wait follows the
// order of the nodes where that is known: mostly one node tries. Every other wait is longer than the one before, less
// a random part, so that of many nodes few try at the same time and a node that lost finds the winner's name.
// Safe for concurrent use; it holds one small entry for each claim in the race.
type Race struct {
	cfg RaceConfig

	mu sync.Mutex
	// runners holds the claims in the race: UID → how far it is.
	runners map[types.UID]runner
}

type runner struct {
	tries int
	due   time.Time
}

// NewRace returns a race without claims.
func NewRace(cfg RaceConfig) (*Race, error) {
	if cfg.Random == nil {
		return nil, errors.New("race: no Random")
	}
	if cfg.Base < 0 || cfg.Max < 0 {
		return nil, errors.New("race: Base and Max must not be below zero")
	}
	return &Race{cfg: cfg, runners: map[types.UID]runner{}}, nil
}

// Wait returns how long the claim still has to wait before this node may try to become its owner; zero: try now.
// A claim that is not in the race enters it with an order that is not known.
func (r *Race) Wait(uid types.UID, now time.Time) time.Duration {
	return r.Enter(uid, now, Order{})
}

// Enter takes the claim into the race and returns its first wait: by the order, or a random one where that is not
// known. For a claim in the race it is Wait: asking again does not make the wait longer.
func (r *Race) Enter(uid types.UID, now time.Time, order Order) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	run, ok := r.runners[uid]
	if !ok {
		if order.Of > 0 {
			run.due = now.Add(order.first(r.cfg.Base, r.cfg.Max))
		} else {
			run = r.draw(0, now)
		}
		r.runners[uid] = run
	}
	return max(0, run.due.Sub(now))
}

// Has reports whether the claim is in the race.
func (r *Race) Has(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.runners[uid]
	return ok
}

// Again draws the next, longer wait and returns it: after a conflict, after an error, and when the node had not
// enough room.
func (r *Race) Again(uid types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := runner{tries: -1}
	if known, ok := r.runners[uid]; ok {
		run = known
	}
	run = r.draw(run.tries+1, now)
	r.runners[uid] = run
	return max(0, run.due.Sub(now))
}

// Forget takes the claim out of the race: it has an owner, or is gone. What comes later begins anew.
func (r *Race) Forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runners, uid)
}

// Len returns how many claims are in the race.
func (r *Race) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runners)
}

func (r *Race) draw(tries int, now time.Time) runner {
	return runner{tries: tries, due: now.Add(Delay(r.cfg.Base, r.cfg.Max, tries, r.cfg.Random()))}
}

// Delay returns the wait before try number tries, counted from zero: base doubled for each try before it, at most
// limit, less the part random of base, with random from 0 up to 1; never below zero.
func Delay(base, limit time.Duration, tries int, random float64) time.Duration {
	wait := min(base, limit)
	for range tries {
		if wait >= limit || wait <= 0 {
			break
		}
		wait = min(wait*2, limit)
		if wait < 0 { // beyond what a Duration holds
			wait = limit
		}
	}
	return max(0, wait-time.Duration(random*float64(base)))
}
