package provision

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// The model: one claim, one driver, one process at a time, and everything that may happen to them, one step after the
// other, in every order. What is decided by protocol.after, readMarker, setMarker and clearMarker is decided by these
// very functions.

// presence is what is left of the claim.
type presence int

const (
	living      presence = iota
	terminating          // deleted, held by our marker
	gone
)

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
	blank   memory = iota // nothing outstanding
	calling               // a call runs
	waiting               // unanswered, in back-off
	unsaved               // the driver said OK, the PersistentVolume is not saved
)

// state is one moment of the model. It is comparable, and zero at the beginning but for the mode.
type state struct {
	mode    markingMode
	claim   presence
	marked  bool // finalizer and annotation are on the claim
	bound   bool // the PersistentVolume was saved for this claim, which needs no other
	backend backend
	pv      bool // a PersistentVolume stands for the volume

	dead     bool
	mem      memory
	proto    protocol // since is always epoch or zero
	wanted   bool     // the marker shall be on the claim
	refused  bool     // the API server does not add it any more
	deleting bool     // DeleteVolume is done, the PersistentVolume still there
	lies     int      // final errors in a row to calls that counted, while the backend was at work or had the volume
	told     bool     // an event names the volume, and asks people to look after it
}

type markingMode int

const (
	byDefault markingMode = iota
	strict
	never
)

const modelTimeout = 10 * time.Second

var (
	epoch     = time.Unix(1000, 0)
	modelMark = marker{UID: "u", Driver: driverName, Class: "k"}
)

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
		n.settle()
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
	can("the claim is deleted", s.claim == living, func(n *state) { n.claim = terminating })
	can("people look after the volume", s.told && s.mem == blank, func(n *state) { n.backend, n.told = nothing, false })
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
	can("the process has stopped", alive && (s.mem == blank || (s.mem == waiting && s.marked)), func(n *state) { n.die() })
	can("a process starts", s.dead, func(n *state) { n.start() })
	// The first call is for a claim that lives and needs a volume; with strict marking for one that is marked.
	can("strict marking is asked for", alive && s.mode == strict && s.mem == blank && s.claim == living && !s.bound && !s.pv && !s.wanted,
		func(n *state) { n.wanted = true })
	can("a first call starts", alive && s.mem == blank && s.claim == living && !s.bound && !s.pv && (s.mode != strict || (s.wanted && s.marked)),
		func(n *state) { n.call() })
	can("the call is repeated", alive && s.mem == waiting && !s.pv, func(n *state) { n.call() })
	can("the delay has passed", alive && s.mode == byDefault && s.mem != blank && !s.wanted, func(n *state) { n.wanted = true })
	can("the marker is written", alive && s.wanted && !s.marked && !s.refused && s.claim != gone, func(n *state) { n.write() })
	can("the marker is removed", alive && !s.wanted && s.marked, func(n *state) { n.remove() })
	can("the PersistentVolume is saved", alive && s.mem == unsaved, func(n *state) {
		n.mem, n.proto, n.pv, n.bound, n.wanted = blank, protocol{}, true, true, false
	})
	can("the PersistentVolume is found", alive && s.mem == waiting && s.pv, func(n *state) {
		n.mem, n.proto, n.bound, n.wanted = blank, protocol{}, true, false
	})
	can("the volume is deleted", alive && s.pv && !s.deleting && s.claim == gone && s.mem == blank, func(n *state) { n.backend, n.deleting = nothing, true })
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
	next, end := s.proto.after(c, modelTimeout, s.claim != living)
	if !next.since.IsZero() {
		next.since = epoch
	}
	s.proto = next
	if next.finals == 0 {
		s.lies = 0
	}
	if end != goesOn {
		s.mem, s.wanted, s.told = blank, false, s.told || end == leftBehind
		return
	}
	s.mem = waiting
	s.wanted = s.mode != never || s.marked
}

func (s *state) die() {
	s.dead, s.mem, s.proto, s.wanted, s.refused, s.lies = true, blank, protocol{}, false, false, 0
}

// start is the beginning of a process: the claim says what is outstanding.
func (s *state) start() {
	s.dead = false
	if s.claim == gone {
		return
	}
	claim := fixture.Claim("c").UID("u").Obj()
	if s.marked {
		setMarker(claim, modelMark.encode())
	}
	if found, _, _ := readMarker(claim, driverName); found == marked {
		s.mem, s.proto, s.wanted = waiting, takenOver(epoch), true
	}
}

// write is one write of the marker, as the API server takes it.
func (s *state) write() {
	claim := fixture.Claim("c").UID("u").Obj()
	setMarker(claim, modelMark.encode())
	if s.claim == terminating {
		s.refused = true // no finalizer is added to what goes
		return
	}
	s.marked = slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

func (s *state) remove() {
	claim := fixture.Claim("c").UID("u").Obj()
	setMarker(claim, modelMark.encode())
	clearMarker(claim)
	s.marked = slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress)
}

// settle is what Kubernetes does at once: a claim that is deleted and not held is gone.
func (s *state) settle() {
	if s.claim == terminating && !s.marked {
		s.claim = gone
	}
	if s.claim == gone && s.mem != blank {
		s.refused = true
	}
}

// remembered reports whether the volume, if there is or may be one, is known to somebody.
func (s state) remembered() bool {
	return s.backend == nothing || s.pv || s.marked || s.told || (!s.dead && s.mem != blank)
}
