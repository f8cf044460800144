package provision

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// finalsToEnd is how many final answers in a row end a create of which one call went unanswered.
const finalsToEnd = 3

// protocol remembers whether a call of one create went unanswered, that is, whether a volume may exist that
// no answer has told us of. The zero value is a create of which no call was made.
//
// A final error to a later call says nothing about the earlier one, which may still be at work in the driver.
// So it takes an OK, or three final errors in a row from calls far enough apart, to end an unanswered create.
//
//	         ┌──────────── final error, OK ───────────▶ ended
//	clean ───┤
//	         └─ no answer ─▶ unanswered ─ OK ─────────▶ ended
//	                          ▲  │  │
//	               no answer ─┘  │  └ third final ────▶ ended
//	                             └ final: counted, if the call began a timeout after the one before
type protocol struct {
	unanswered bool
	finals     int       // final answers in a row since the last call without an answer
	lastStart  time.Time // when the last call began; zero before the first
}

// call is one CreateVolume call that has come to its end.
type call struct {
	start   time.Time
	outcome outcome.Outcome // Done, Failed, Reschedule or Background
	code    codes.Code
}

// after returns the state after the call, and whether the create has come to an end. timeout is the least
// distance of two calls whose final answers both count.
func (p protocol) after(c call, timeout time.Duration) (next protocol, ended bool) {
	spaced := c.start.Sub(p.lastStart) >= timeout
	next = protocol{unanswered: p.unanswered, finals: p.finals, lastStart: c.start}
	switch c.outcome {
	case outcome.Done:
		return protocol{}, true
	case outcome.Failed, outcome.Reschedule:
		if !p.unanswered {
			return protocol{}, true
		}
		// AlreadyExists speaks of the very volume that we do not know of.
		if c.code == codes.AlreadyExists || !spaced {
			return next, false
		}
		next.finals++
		if next.finals >= finalsToEnd {
			return protocol{}, true
		}
		return next, false
	case outcome.Background, outcome.Unchanged, outcome.NotOurs:
		next.unanswered, next.finals = true, 0
		return next, false
	}
	return next, false
}

// wait returns how long the next call must wait so that its final answer counts; zero when it need not.
func (p protocol) wait(now time.Time, timeout time.Duration) time.Duration {
	if !p.unanswered || p.lastStart.IsZero() {
		return 0
	}
	return max(0, timeout-now.Sub(p.lastStart))
}
