package loop

import (
	"math/rand/v2"
	"sync"
	"time"
)

// backoff keeps, for each key, how often it came back in a row.
type backoff[K comparable] struct {
	start, max, busyMax time.Duration

	mu    sync.Mutex
	tries map[K]tries // key → failures since it was last forgotten
}

type tries struct{ errors, busy int }

// next returns the wait before the key's next turn and counts it.
func (b *backoff[K]) next(key K, isBusy bool) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tries[key]
	var wait time.Duration
	if isBusy {
		wait = exponential(b.start, b.busyMax, t.busy)
		// Half of the wait is certain, half is chance; the first wait keeps its length, since a driver
		// that answers once in the normal case is the common one.
		if t.busy > 0 {
			wait = wait/2 + rand.N(wait/2+1) //nolint:gosec // spreading retries needs no secrecy
		}
		t.busy++
	} else {
		wait = exponential(b.start, b.max, t.errors)
		t.errors++
	}
	b.tries[key] = t
	return wait
}

func (b *backoff[K]) forget(key K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tries, key)
}

// exponential returns start·2ⁿ, at most limit. It doubles step by step, so that nothing overflows.
func exponential(start, limit time.Duration, n int) time.Duration {
	wait := start
	for range n {
		if wait >= limit {
			break
		}
		wait *= 2
	}
	return min(wait, limit)
}
