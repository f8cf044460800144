package nodelocal

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// RaceConfig describes a Race.
type RaceConfig struct {
	// Base is the span over which the nodes' first waits are spread (--node-deployment-base-delay). Zero: no wait.
	Base time.Duration
	// Max bounds the wait (--node-deployment-max-delay).
	Max time.Duration
	// Random returns a number from 0 up to, not including, 1. It is not called concurrently. Required.
	Random func() float64
}

// Race keeps, for each claim that this node competes for, how long it still has to wait: each try waits longer
// than the one before, less a random part, so that of many nodes few try at the same time and a node that lost
// finds the winner's name. Safe for concurrent use; it holds one small entry for each claim in the race.
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
// The first call for a claim draws its first wait. Asking again does not make it longer.
func (r *Race) Wait(uid types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	run, ok := r.runners[uid]
	if !ok {
		run = r.draw(0, now)
		r.runners[uid] = run
	}
	return max(0, run.due.Sub(now))
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
