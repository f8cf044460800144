package process

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// view is what matters of a lease's record; two records that are alike make equal views.
type view struct {
	holder      string
	duration    time.Duration
	transitions int
	renewed     int64 // nanoseconds
}

// sightings keeps how the lease looked when it was last seen, by a read or by the watch. Its methods may be
// called concurrently.
type sightings struct {
	fallback time.Duration            // the duration of a lease that names none
	other    func(holder string) bool // whether that is another contender, who may be alive

	mu      sync.Mutex
	last    view
	since   time.Time     // since when the lease looks like that, by our clock; the zero time: never seen
	version int           // counts how often the look has changed
	changed chan struct{} // closed when any of this changes
	watched bool          // a watch tells of changes
}

func newSightings(cfg LeaderConfig) *sightings {
	return &sightings{
		fallback: cfg.LeaseDuration, changed: make(chan struct{}),
		other: func(holder string) bool { return holder != "" && holder != cfg.Identity && !cfg.Replaces(holder) },
	}
}

// see takes in a record, nil for a lease that is not there, and returns what is known then. Seeing it late only makes us
// wait longer. A lease that was deleted while somebody held it looks as before until its duration is over: its holder goes
// on working until it notices.
func (s *sightings) see(record *resourcelock.LeaderElectionRecord) sighting {
	var now view
	if record != nil {
		now = view{holder: record.HolderIdentity, duration: time.Duration(record.LeaseDurationSeconds) * time.Second, transitions: record.LeaderTransitions, renewed: record.RenewTime.UnixNano()}
		if now.duration <= 0 {
			now.duration = s.fallback
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if record == nil && s.now().taken() {
		return s.now()
	}
	if s.since.IsZero() || s.last != now {
		s.last, s.since = now, time.Now()
		s.version++
		s.signal()
	}
	return s.now()
}

// watch says whether changes are told by a watch.
func (s *sightings) watch(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched != on {
		s.watched = on
		s.signal()
	}
}

// signal wakes who waits for a change. s.mu is held.
func (s *sightings) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// sighting is a moment of sightings.
type sighting struct {
	view
	other   bool // somebody else is the holder, who may be alive
	since   time.Time
	version int
	watched bool
	changed <-chan struct{}
}

// taken reports whether somebody else holds the lease, and it has not been seen unchanged for its whole duration.
func (s sighting) taken() bool { return s.other && time.Since(s.since) < s.duration }

// get returns this moment.
func (s *sightings) get() sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

// now is get for who holds s.mu.
func (s *sightings) now() sighting {
	return sighting{view: s.last, other: s.other(s.last.holder), since: s.since, version: s.version, watched: s.watched, changed: s.changed}
}

// lock is the lease as one elector sees it in one term. It adds to the library's lock:
//
//   - a lease that was seen unchanged for its whole duration, or whose holder is replaced, reads as free. The update
//     still carries the resource version of that read, so it fails if the holder has come back to life;
//   - a lease that was deleted is created only when its duration is over;
//   - the first try that does not win ends the elector, whose place a fresh one takes at the right moment;
//   - each request has a deadline, and a leader's request that fails is sent again soon, so that the lease is
//     kept when the API server is away for nearly as long as the renew deadline.
type lock struct {
	resourcelock.Interface
	seen     *sightings
	timeout  time.Duration         // of a request
	pause    time.Duration         // before a leader sends a failed request again
	report   func(string, error)   // takes how a request ended, but for "not found": its verb, and its error or nil
	giveUp   context.CancelFunc    // ends the elector
	onUpdate func(begun time.Time) // takes each request that has made or kept us the leader

	mu     sync.Mutex
	won    bool // a request has made us the leader
	stolen bool // after that, somebody else was seen to hold the lease
	failed bool // the try ended with an error, and not with another holder
}

// Get reads the lease.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var (
		record *resourcelock.LeaderElectionRecord
		raw    []byte
	)
	err := l.send(ctx, "get", func(ctx context.Context) (err error) {
		record, raw, err = l.Interface.Get(ctx)
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if apierrors.IsNotFound(err) {
		if deleted := l.seen.see(nil); l.won || !deleted.taken() {
			return nil, nil, err
		}
		l.giveUp() // the elector would create it
		return nil, nil, errDeleted
	}
	if err != nil {
		l.fail()
		return nil, nil, err
	}
	switch now := l.seen.see(record); {
	case now.holder == "", now.holder == l.Identity():
		return record, raw, nil
	case l.won:
		l.stolen = true
		l.giveUp()
		return record, raw, nil
	case now.taken():
		l.giveUp()
		// The elector must wait as long as we do, also for a lease that names no duration.
		record.LeaseDurationSeconds = max(record.LeaseDurationSeconds, 1)
		return record, raw, nil
	}
	free := *record
	free.HolderIdentity = ""
	return &free, append(raw, "free"...), nil
}

// errDeleted is what the elector gets for a lease that is not there and still taken.
var errDeleted = errors.New("the lease was deleted, and its last holder may still be at work")

// Create makes the lease, with us as its holder.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, "create", l.Interface.Create, record)
}

// Update takes or keeps the lease.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, "update", l.Interface.Update, record)
}

func (l *lock) write(ctx context.Context, verb string, do func(context.Context, resourcelock.LeaderElectionRecord) error, record resourcelock.LeaderElectionRecord) error {
	var first, begun time.Time
	err := l.send(ctx, verb, func(ctx context.Context) error {
		begun = time.Now()
		if first.IsZero() {
			first = begun
		}
		return do(ctx, record)
	})
	if apierrors.IsAlreadyExists(err) && begun.After(first) && l.created(ctx) {
		begun, err = first, nil // it was the first request, whose answer was lost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fail()
		return err
	}
	l.won = true
	l.onUpdate(begun)
	return nil
}

// created reports whether the lease that is there is ours. When it is somebody else's, the term ends: the library would
// go on with the version that was read, and take the lease from them.
func (l *lock) created(ctx context.Context) bool {
	record, _, err := l.Get(ctx)
	return err == nil && record.HolderIdentity == l.Identity()
}

// send sends one request, and for a leader again and again until it is answered or ctx ends. A panic is an error like any
// other.
func (l *lock) send(ctx context.Context, verb string, do func(context.Context) error) error {
	for {
		request, cancel := context.WithTimeout(ctx, l.timeout)
		err := loop.Guard(request, component, func() error { return do(request) })
		cancel()
		if apierrors.IsNotFound(err) {
			return err
		}
		l.report(verb, err)
		if err == nil {
			return nil
		}
		l.mu.Lock()
		again := l.won && !l.stolen && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err)
		l.mu.Unlock()
		if !again {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(l.pause):
		}
	}
}

// fail ends an elector that has not won yet; the leader goes on trying. l.mu is held.
func (l *lock) fail() {
	if !l.won {
		l.failed = true
		l.giveUp()
	}
}

func (l *lock) state() (won, failed, stolen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.won, l.failed, l.stolen
}

// release clears the lease if it is ours, and reports whether it is free now. It is called after the elector
// has ended; a request of its that was under way may still change the lease, hence the tries.
func (l *lock) release(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	for {
		old, _, err := l.Interface.Get(ctx)
		if err != nil {
			l.report("get", err)
			return apierrors.IsNotFound(err)
		}
		if old.HolderIdentity != l.Identity() {
			return old.HolderIdentity == ""
		}
		now := metav1.Now()
		err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: old.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
		if err == nil {
			return true
		}
		l.report("update", err)
		if !apierrors.IsConflict(err) {
			return false
		}
	}
}
