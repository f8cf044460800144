package capacity

import (
	"context"
	"time"
)

const (
	// slices of an interval in which a share of the pairs gets its turn, as far as the tick stays sensible.
	pollSlices  = 60
	minPollTick = 100 * time.Millisecond
	// A pair that was brought up to date in the last tenth of an interval is not asked for again.
	freshShare = 10
)

// poller spreads the refresh of all pairs over the poll interval.
type poller struct {
	interval, tick time.Duration
	// credit is how many pairs may be taken before they are due; fractions add up.
	credit float64
}

func newPoller(interval time.Duration) poller {
	return poller{interval: interval, tick: max(interval/pollSlices, min(minPollTick, interval))}
}

// poll gives a turn to each resting pair that would be late at the next tick, and to a tick's share of the
// others, the ones that rest longest first: so pairs that were all refreshed together, as after a start, are
// spread over the interval within one or two rounds.
func (p *poller) poll(b *book, now time.Time) {
	share := float64(b.line.Len()) * float64(p.tick) / float64(p.interval)
	p.credit = min(p.credit+share, max(share, 1))
	for first := b.line.Front(); first != nil; first = b.line.Front() {
		it := first.Value.(*item) //nolint:forcetypeassert // nothing else is in the line
		age := now.Sub(it.since)
		early := p.credit >= 1 && age >= p.interval/freshShare
		if age <= p.interval-p.tick && !early {
			return
		}
		p.credit = max(p.credit-1, 0)
		b.want(it)
	}
}

// run polls until stop ends.
func (p *poller) run(stop context.Context, poll func(now time.Time)) {
	ticker := time.NewTicker(p.tick)
	defer ticker.Stop()
	for {
		select {
		case <-stop.Done():
			return
		case now := <-ticker.C:
			poll(now)
		}
	}
}
