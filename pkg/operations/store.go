package operations

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var (
	// ErrForgotten means that a person has ended the operation: the Lease was deleted or annotated.
	ErrForgotten = errors.New("the operation was ended by hand")
	// ErrLost means that another process drives the operation now.
	ErrLost = errors.New("another process has taken the operation over")
	// errBound means that as many operations are in flight as may be.
	errBound = errors.New("waiting, because as many operations are in flight as may be")
)

// State says how far an operation is.
type State int

const (
	// Waiting is an operation that is not recorded yet: the driver must not be called.
	Waiting State = iota
	// Recorded is one that a later process would find.
	Recorded
	// Unprotected is one that cannot be recorded. The driver may be called.
	Unprotected
	// Recovered is one that another process has left. It is the operation that Listener.Recovered was called with.
	Recovered
	// Lost is one that another process drives now: nothing may be done for it here.
	Lost
	// Forgotten is one that a person has ended.
	Forgotten
)

// Status is the state of an operation. Err says why it is Waiting, if there is more to say than that it was asked for a
// moment ago, and why it is Unprotected, nil if that was asked for.
type Status struct {
	State State
	Err   error
}

// entry is one operation that callers know of.
type entry struct {
	op     *Operation
	text   string // see slot; empty for an operation that was found
	status Status
	slot   *slot // nil: in the queue, or not in a slot any more
	// more are Leases with other operations of the same claim that were left; they are told of one after the other.
	more []*slot
}

// Store records operations. Its methods may be called concurrently; only Check waits for the API server.
type Store struct {
	cfg     Config
	reader  reader
	metrics *metrics
	kick    chan struct{} // wakes Run

	mu         sync.Mutex
	slots      map[int]*slot
	entries    map[types.UID]*entry // claim → its operation
	queue      []*entry             // that have no slot yet, oldest first
	namespaces map[string]int       // namespace → operations in slots
	inSlots    int
	awaited    map[types.UID]bool // claims of which somebody waits for Ended
	sending    int                // requests in flight
	looking    bool               // a search for what was left is in flight
	looked     bool               // the first one has succeeded
	lookAt     time.Time          // when the next one is due; zero after the first: never
	lookFailed int
	lookErr    error
	denied     error                // why nothing can be recorded, nil if it can
	seen       map[string]seen      // Lease name → its version, of those that others hold
	reported   map[types.UID]string // Lease → reason, of operations that cannot be replayed
	calls      []func()             // of the listener, to be made without mu
	ready      chan struct{}        // closed when what the first search has found is taken over, or the right is missing
	announced  bool                 // ready is closed, or about to be
	flushed    chan struct{}        // closed when no Lease says an operation that has ended; nil when nobody waits
}

// seen is since when a version of a Lease is known.
type seen struct {
	version string
	since   time.Time
}

// New checks cfg. Nothing is sent before Run.
func New(cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, reader: cfg.reader(), kick: make(chan struct{}, 1), slots: map[int]*slot{}, entries: map[types.UID]*entry{},
		namespaces: map[string]int{}, awaited: map[types.UID]bool{}, ready: make(chan struct{}), seen: map[string]seen{}, reported: map[types.UID]string{},
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// Begin asks for the operation to be recorded and returns how far that is. While it is Waiting, Changed is called when
// that ends. For a claim of which there is an operation it returns the status of that one. op is not changed, and must
// not be changed later.
func (s *Store) Begin(op Operation) Status {
	s.mu.Lock()
	defer s.unlock()
	if e, ok := s.entries[op.Claim.UID]; ok {
		return s.statusOf(e)
	}
	op.Driver, op.Node = s.cfg.Driver, s.cfg.Node
	e := &entry{op: &op}
	s.entries[op.Claim.UID] = e
	var err error
	switch e.text, err = Encode(op, longUID); {
	case err != nil:
		s.unprotect(e, "too_large", err)
	case s.denied != nil:
		s.unprotect(e, "denied", s.denied)
	case s.looked && s.cfg.ReadOnly:
		e.status = Status{State: Unprotected}
	default:
		s.queue = append(s.queue, e)
	}
	return s.statusOf(e)
}

// longUID is as long as the UIDs of an API server.
const longUID = types.UID("00000000-0000-0000-0000-000000000000")

// statusOf adds why an operation waits.
func (s *Store) statusOf(e *entry) Status {
	status := e.status
	switch {
	case status.State != Waiting || status.Err != nil:
	case !s.looked && s.lookErr != nil:
		status.Err = fmt.Errorf("read the operations of earlier processes: %w", s.lookErr)
	case e.slot == nil && s.looked && !s.fits(e):
		status.Err = errBound
	}
	return status
}

// drop takes an operation out of its slot or the queue. mu is held.
func (s *Store) drop(e *entry) {
	if e.slot == nil {
		s.queue = slices.DeleteFunc(s.queue, func(waiting *entry) bool { return waiting == e })
		return
	}
	if e.slot.op == e.op {
		e.slot.end(time.Now())
	}
	s.leave(e)
}

// leave counts an operation out of its slot. mu is held.
func (s *Store) leave(e *entry) {
	e.slot = nil
	s.inSlots--
	if s.namespaces[e.op.Claim.Namespace]--; s.namespaces[e.op.Claim.Namespace] <= 0 {
		delete(s.namespaces, e.op.Claim.Namespace)
	}
}

// enter counts an operation into a slot. mu is held.
func (s *Store) enter(e *entry, in *slot) {
	e.slot = in
	s.inSlots++
	s.namespaces[e.op.Claim.Namespace]++
}

// fits reports whether one more operation may begin. mu is held.
func (s *Store) fits(e *entry) bool {
	return s.inSlots < maxOperations && s.namespaces[e.op.Claim.Namespace] < maxOperations/2
}

func (s *Store) unprotect(e *entry, reason string, err error) {
	e.status = Status{State: Unprotected, Err: err}
	s.metrics.unprotected.WithLabelValues(reason).Inc()
}

func (s *Store) changed(claim types.UID) {
	s.calls = append(s.calls, func() { s.cfg.Listener.Changed(claim) })
}

// unlock lets go of mu, makes the calls that have gathered, and wakes Run.
func (s *Store) unlock() {
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	for _, call := range calls {
		call()
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
