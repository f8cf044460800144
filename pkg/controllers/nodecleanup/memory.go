package nodecleanup

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// suspect is an object that may be stuck, with the node that a claim waits for; empty for a PersistentVolume, whose nodes never
// change.
type suspect struct {
	uid  types.UID
	node string
}

const (
	// maxUnread is how many times in a row the nodes of a suspect may be unreadable before its grace begins anew.
	maxUnread = 3
	// maxPause is the longest pause between two looks at a suspect that is well, in rounds.
	maxPause = 10
)

// history is what the rounds have found about one suspect.
type history struct {
	state  nodeState // of the node; gone for those of a PersistentVolume
	since  time.Time // since when all looks have found that; zero when the last look has found nothing wrong
	unread int       // how many looks in a row have failed since
	pause  int       // after how many rounds a suspect that is well is looked at again; zero at first
	next   time.Time // there is no look before; zero: at the next round
	seen   bool      // by this round
}

// due reports whether it is time for a look.
func (h *history) due(now time.Time) bool { return !now.Before(h.next) }

// wrong notes that a look has found that state, and returns for how long that has been so: 0 for the first time.
func (h *history) wrong(state nodeState, now time.Time) time.Duration {
	if h.since.IsZero() || h.state != state {
		h.since = now
	}
	h.state, h.unread, h.pause, h.next = state, 0, 0, time.Time{}
	return now.Sub(h.since)
}

// well notes that a look has found nothing wrong. Each one in a row doubles the pause before the next look, so that
// objects that wait for healthy nodes cost few requests.
func (h *history) well(now time.Time, interval time.Duration) {
	pause := min(max(2, 2*h.pause), maxPause)
	*h = history{pause: pause, next: now.Add(time.Duration(pause) * interval), seen: h.seen}
}

// failed notes that nodes could not be read. A few failures in a row say nothing; after more, nobody knows whether the
// node was back in the meantime, and the grace begins anew.
func (h *history) failed() {
	if h.unread++; h.unread > maxUnread {
		h.state, h.since = serving, time.Time{}
	}
}

// histories remember the suspects that each round sees, and forget those that a round does not see: a claim that gets
// another node begins anew.
type histories map[suspect]*history

// of returns what is known of a suspect; nil when this round is the first to see it.
func (all histories) of(s suspect) *history {
	h, known := all[s]
	if !known {
		all[s] = &history{seen: true}
		return nil
	}
	h.seen = true
	return h
}

// end ends a round.
func (all histories) end() {
	for s, h := range all {
		if !h.seen {
			delete(all, s)
		}
		h.seen = false
	}
}
