package provision

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

const (
	// finalsToEnd is how many final answers end a create of which a call may still be at work.
	finalsToEnd = 3
	// maxSpacing bounds how far apart the calls with these answers must be.
	maxSpacing = time.Minute
)

// spacing returns how far apart two calls must begin so that the final answers of both count. timeout is the deadline of
// a call.
func spacing(timeout time.Duration) time.Duration { return min(timeout, maxSpacing) }

// protocol remembers whether a volume may exist, or may come to exist, of which no answer to this create has told. The
// zero value is a create of which no call was made, or all were answered finally.
//
// A create is unanswered from the first call that ended without a final answer. If all its calls were answered, none of
// them is at work any more, and the next final answer ends the create. If one may be at work still (it was cut off, the
// driver says so, or an earlier process made it), a final error to another call says nothing about that one. Then it
// takes an OK, or three final errors from calls far enough apart.
//
//	         ┌─────── OK, final error ─────────────────────────▶ ended
//	none ────┤
//	         ├─ not final, answered ─▶ unanswered ── OK, final ─▶ ended
//	         │                             │
//	         │                             │ a call may be at work
//	         │                             ▼
//	         └─ a call may be at work ─▶ uncertain ── OK ──────▶ ended
//	                                       ▲  │  │
//	    not final: the count begins anew ──┘  │  └ third final ─▶ ended
//	                                          └ final: counted, if far enough from the last that was
//
// AlreadyExists to an unanswered create is about the volume that no answer has told of, so it ends nothing while the
// claim waits for that volume. When the claim is going, the create ends with the AlreadyExists with which any other final
// error would have ended it, and the volume is left behind.
type protocol struct {
	// unanswered says that a call ended without a final answer.
	unanswered bool
	// uncertain says that a call may still be at work; then unanswered is true as well.
	uncertain bool
	// finals and exists count the final answers, without and with the code AlreadyExists, since the last answer that
	// was not final. They are at most finalsToEnd.
	finals, exists int
	// since is when that call began, or the last one whose final answer was counted. Zero if not unanswered.
	since time.Time
}

// takenOver is the state of a create that an earlier process has begun, of whose calls nothing is known.
func takenOver(now time.Time) protocol {
	return protocol{unanswered: true, uncertain: true, since: now}
}

// call is one CreateVolume call that has come to its end.
type call struct {
	start   time.Time
	outcome outcome.Outcome // Done, Failed, Reschedule or Background
	code    codes.Code
	// mayBeRunning says that this call, or another one for the volume, may be at work or has made a volume.
	mayBeRunning bool
}

// ending says whether a create has come to an end.
type ending int

const (
	goesOn ending = iota
	over
	// leftBehind is over, while the driver has said that it has a volume of the name.
	leftBehind
)

// after returns the state after the call, and whether the create has come to an end. spaced is the least distance of two
// calls whose final answers both count; going says that the claim is gone or being deleted.
func (p protocol) after(c call, spaced time.Duration, going bool) (protocol, ending) {
	switch c.outcome {
	case outcome.Done:
		return protocol{}, over
	case outcome.Failed, outcome.Reschedule:
		return p.afterFinal(c, spaced, going)
	case outcome.Background, outcome.Unchanged, outcome.NotOurs:
	}
	return protocol{unanswered: true, uncertain: p.uncertain || c.mayBeRunning, since: c.start}, goesOn
}

func (p protocol) afterFinal(c call, spaced time.Duration, going bool) (protocol, ending) {
	switch {
	case !p.unanswered:
		return protocol{}, over
	case p.uncertain && c.start.Sub(p.since) < spaced:
		return p, goesOn
	}
	p.since = c.start
	if c.code == codes.AlreadyExists {
		p.exists = min(p.exists+1, finalsToEnd)
	} else {
		p.finals++
	}
	needed := 1
	if p.uncertain {
		needed = finalsToEnd
	}
	switch {
	case going && p.exists > 0 && max(p.finals, p.exists) >= needed:
		return protocol{}, leftBehind
	case p.finals >= needed:
		return protocol{}, over
	}
	return p, goesOn
}

// wait returns how long the next call must wait so that its final answer counts; zero when it need not.
func (p protocol) wait(now time.Time, spaced time.Duration) time.Duration {
	if !p.unanswered {
		return 0
	}
	return max(0, spaced-now.Sub(p.since))
}
