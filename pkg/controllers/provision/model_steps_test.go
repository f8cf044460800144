package provision

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// The model: one claim, one driver, one process at a time, and everything that may happen to them, one step after the
// other, in every order. What is decided by protocol.after is decided by this very function.

// backend is what the storage system has.
type backend int

const (
	nothing backend = iota
	making          // a call is, or was, at work and may yet make the volume
	volume1         // the volume exists
)

// memory is what the living process knows of the create.
type memory int

const (
	blank     memory = iota // nothing outstanding
	recorded1               // the operation is recorded, no call was made
	calling                 // a call runs
	waiting                 // unanswered, in back-off
	unsaved                 // the driver said OK, the PersistentVolume is not saved
)

// state is one moment of the model. It is comparable, and zero at the beginning but for the mode.
type state struct {
	mode    recordMode
	gone    bool // the claim was deleted; nothing of ours holds it
	lease   bool // a Lease says the operation
	bound   bool // the PersistentVolume was saved for this claim, which needs no other
	backend backend
	pv      bool // a PersistentVolume stands for the volume

	dead     bool
	mem      memory
	proto    protocol // since is always epoch or zero
	deleting bool     // DeleteVolume is done, the PersistentVolume still there
	lies     int      // final errors in a row to calls that counted, while the backend was at work or had the volume
	told     bool     // an event names the volume, and asks people to look after it
}

type recordMode int

const (
	recording   recordMode = iota
	unprotected            // --operation-leases=false, or the right is missing
)

const modelTimeout = 10 * time.Second

var epoch = time.Unix(1000, 0)

// move is one thing that may happen next.
type move struct {
	name string
	next state
}

// moves returns everything that may happen next.
func (s state) moves() []move {
	var list []move
	can := func(name string, possible bool, change func(n *state)) {
		if !possible {
			return
		}
		n := s
		change(&n)
		list = append(list, move{name, n})
	}
	s.usersMoves(can)
	s.driversMoves(can)
	s.processMoves(can)
	s.answers(can)
	return list
}

type option func(name string, possible bool, change func(n *state))

func (s state) usersMoves(can option) {
	can("the claim is deleted", !s.gone, func(n *state) { n.gone = true })
	can("people look after the volume", s.told && s.mem == blank, func(n *state) { n.backend, n.told = nothing, false })
	can("a person ends the operation", s.lease && s.mem == waiting, func(n *state) {
		n.lease, n.mem, n.proto, n.told = false, blank, protocol{}, true
	})
}

// driversMoves happen in the storage system without anybody asking.
func (s state) driversMoves(can option) {
	can("the backend completes", s.backend == making, func(n *state) { n.backend = volume1 })
	can("the backend gives up", s.backend == making && s.mem != calling, func(n *state) { n.backend = nothing })
}

func (s state) processMoves(can option) {
	alive := !s.dead
	can("the process is killed", alive, func(n *state) { n.die() })
	// A stop drains: it ends when nothing is left that only this process knows.
	can("the process has stopped", alive && (s.mem == blank || (s.mem == waiting && s.lease)), func(n *state) { n.die() })
	can("a process starts", s.dead, func(n *state) { n.start() })
	// The first call is for a claim that lives and needs a volume, and when its operation is recorded.
	needed := alive && s.mem == blank && !s.gone && !s.bound && !s.pv
	can("the operation is recorded", needed && s.mode == recording && !s.lease, func(n *state) { n.lease, n.mem = true, recorded1 })
	can("the Lease of the last operation says the next one", needed && s.mode == recording && s.lease, func(n *state) { n.mem = recorded1 })
	can("a first call starts", alive && s.mem == recorded1 || needed && s.mode == unprotected, func(n *state) { n.call() })
	can("the claim has changed, and no call is made", alive && s.mem == recorded1, func(n *state) { n.mem = blank })
	can("the call is repeated", alive && s.mem == waiting && !s.pv, func(n *state) { n.call() })
	can("the Lease says the operation no more", alive && s.lease && s.mem == blank, func(n *state) { n.lease = false })
	can("the PersistentVolume is saved", alive && s.mem == unsaved, func(n *state) {
		n.mem, n.proto, n.pv, n.bound = blank, protocol{}, true, true
	})
	can("the PersistentVolume is found", alive && s.mem == waiting && s.pv, func(n *state) {
		n.mem, n.proto, n.bound = blank, protocol{}, true
	})
	can("the volume is deleted", alive && s.pv && !s.deleting && s.gone && s.mem == blank && !s.lease, func(n *state) { n.backend, n.deleting = nothing, true })
	can("the PersistentVolume is removed", alive && s.deleting, func(n *state) { n.pv, n.deleting = false, false })
}

// answers are the ends of a call that runs.
func (s state) answers(can option) {
	running := !s.dead && s.mem == calling
	can("the driver answers OK", running, func(n *state) { n.backend, n.mem, n.lies = volume1, unsaved, 0 })
	can("no answer", running, func(n *state) {
		n.ended(call{outcome: outcome.Background, code: codes.DeadlineExceeded, mayBeRunning: true}, true)
	})
	// The call is over, with or without a volume. Of other calls it tells nothing.
	notFinal := call{outcome: outcome.Background, code: codes.Unavailable}
	can("an answer that is not final", running, func(n *state) {
		if !n.proto.uncertain && n.backend == making {
			n.backend = nothing
		}
		n.ended(notFinal, true)
	})
	can("an answer that is not final, with a volume", running, func(n *state) {
		n.backend = volume1
		n.ended(notFinal, true)
	})
	// When no other call can be at work, an error says that there is no volume.
	honest := s.backend == nothing || (s.backend == making && !s.proto.uncertain)
	for _, spaced := range []bool{false, true} {
		can("a final error", running && honest, func(n *state) {
			n.backend = nothing
			n.ended(call{outcome: outcome.Failed, code: codes.Internal}, spaced)
		})
		// It is at work still, or has the volume, and refuses all the same: the design bears that twice in a row.
		can("a misleading final error", running && s.proto.uncertain && s.backend != nothing && (s.lies < 2 || !spaced), func(n *state) {
			before := n.proto.finals
			n.ended(call{outcome: outcome.Failed, code: codes.Internal}, spaced)
			if n.proto.finals > before {
				n.lies++
			}
		})
		can("AlreadyExists", running && s.proto.unanswered, func(n *state) {
			n.ended(call{outcome: outcome.Failed, code: codes.AlreadyExists}, spaced)
		})
	}
}

// call starts a call: from now on the backend may be at work.
func (s *state) call() {
	s.mem = calling
	if s.backend == nothing {
		s.backend = making
	}
}

// ended is what the process makes of an answer other than OK.
func (s *state) ended(c call, spaced bool) {
	c.start = epoch
	if spaced {
		c.start = epoch.Add(modelTimeout)
	}
	next, end := s.proto.after(c, modelTimeout, s.gone)
	if !next.since.IsZero() {
		next.since = epoch
	}
	s.proto = next
	if next.finals == 0 {
		s.lies = 0
	}
	if end != goesOn {
		s.mem, s.told = blank, s.told || end == leftBehind
		return
	}
	s.mem = waiting
}

func (s *state) die() {
	s.dead, s.mem, s.proto, s.lies = true, blank, protocol{}, 0
}

// start is the beginning of a process: the Lease says what is outstanding, also what has ended.
func (s *state) start() {
	s.dead = false
	if s.lease {
		s.mem, s.proto = waiting, takenOver(epoch)
	}
}

// remembered reports whether the volume, if there is or may be one, is known to somebody.
func (s state) remembered() bool {
	return s.backend == nothing || s.pv || s.lease || s.told || (!s.dead && s.mem != blank)
}
