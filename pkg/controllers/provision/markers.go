package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

const (
	// markRate and markBurst bound how many claims are marked in a second because their calls take long. What comes
	// to its end while it waits for its turn leaves the line and takes no turn, so under load the marks go to the
	// creates that have waited longest. What is known to need its mark waits for no turn.
	markRate, markBurst = 20, 50
	// saveGrace is how long a save may take before the claim is marked after all: as a rule the
	// PersistentVolume is there sooner than the marker would be.
	saveGrace = time.Second
	// componentMarkers is the name of the markers in the metric of panics.
	componentMarkers = "markers"
	// writePause is the pause after the first write that failed, and writePauseMax after many.
	writePause, writePauseMax = 100 * time.Millisecond, 30 * time.Second
)

// markers writes and removes the markers of claims: one small state machine a claim, which brings what is on
// the claim (actual) to what should be there (desired), one write at a time.
//
//	begin ──▶ armed ──delay──▶ in line ──turn──▶ desired ──▶ writing ──▶ actual
//	            │                 │                 ▲                       │
//	            └───────end───────┤                want                    end ──▶ removing ──▶ forgotten
//	                              ▼
//	                        nothing to do
//
// All methods may be called concurrently and none of them waits for the API server but ensure and wait.
// The contexts given to them bound the writes that they start.
type markers struct {
	client kubernetes.Interface
	// delay is how long a call may run before its claim is marked: zero means that the caller marks it
	// before the call, below zero that nothing is marked.
	delay   time.Duration
	refused func(reason string) // counts markers that the API server refused
	// driver and node are whose markers these are: those of another node are neither changed nor removed. Node
	// is "" in central mode.
	driver, node string
	warn         sync.Once // one warning is enough to say that claims cannot be marked
	turns        flowcontrol.RateLimiter

	mu      sync.Mutex
	marks   map[types.UID]*mark // claim UID → its state; missing: nothing on the claim that we know of
	line    []*mark             // whose delay is over and whose turn has not come, in that order
	serving bool                // there is a timer that gives the next turn
	writers sync.WaitGroup
}

type mark struct {
	claim           types.NamespacedName
	uid             types.UID
	value           string
	desired, actual bool
	written         string // the value that the claim carries; meaningless unless actual
	// unclear says that a write failed after it was sent, so that it may have been applied: what the claim carries
	// is not known before the next answer.
	unclear bool
	refusal error         // why the API server will not take it; nil when it may
	timer   *time.Timer   // nil when neither armed nor in line
	turn    func()        // asks for the marker when its turn has come; mu is held
	idle    chan struct{} // closed when its writer has ended; nil when there is none
	changed chan struct{} // tells the writer in its pause that something else is desired
}

func newMarkers(client kubernetes.Interface, delay time.Duration, refused func(string)) *markers {
	return &markers{
		client: client, delay: delay, refused: refused, marks: map[types.UID]*mark{},
		turns: flowcontrol.NewTokenBucketRateLimiter(markRate, markBurst),
	}
}

// begin says that a call for the claim begins, and arms the timer.
func (m *markers) begin(ctx context.Context, claim *corev1.PersistentVolumeClaim, value string) {
	if m.delay <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(claim)
	if k.desired || k.timer != nil {
		return
	}
	k.turn = func() { m.desire(ctx, k, value) }
	var timer *time.Timer
	timer = time.AfterFunc(m.delay, func() {
		loop.GuardFunc(ctx, componentMarkers, func() { //nolint:contextcheck // serve starts a timer for all in line
			m.mu.Lock()
			defer m.mu.Unlock()
			if k.timer == timer { // else it was disarmed while we waited for mu
				m.line = append(m.line, k)
				m.serve()
			}
		})
	})
	k.timer = timer
}

// serve gives turns to those in line, and comes again when there are not enough. mu is held.
func (m *markers) serve() {
	for len(m.line) > 0 && m.turns.TryAccept() {
		m.line[0].turn()
	}
	if len(m.line) == 0 || m.serving {
		return
	}
	m.serving = true
	time.AfterFunc(time.Second/markRate, func() {
		//nolint:forbidigo // a timer has no context
		loop.GuardFunc(context.Background(), componentMarkers, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.serving = false
			m.serve()
		})
	})
}

// answered says that the driver has made the volume, and that the PersistentVolume is about to be saved.
func (m *markers) answered(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.marks[uid]; ok && k.timer != nil && k.timer.Stop() {
		k.timer.Reset(saveGrace)
	}
}

// want asks for the marker now, without a turn, and does not wait for it.
func (m *markers) want(ctx context.Context, claim *corev1.PersistentVolumeClaim, value string) {
	if m.delay < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.get(claim); !k.desired {
		m.desire(ctx, k, value)
	}
}

// desire says that the claim should carry the marker. mu is held.
func (m *markers) desire(ctx context.Context, k *mark, value string) {
	m.disarm(k)
	k.value, k.desired, k.refusal = value, true, nil
	m.write(ctx, k)
}

// ensure asks for the marker and waits until it is written. The error says why it cannot be.
func (m *markers) ensure(ctx context.Context, claim *corev1.PersistentVolumeClaim, value string) error {
	if m.delay < 0 {
		return nil
	}
	m.want(ctx, claim, value)
	for {
		m.mu.Lock()
		k := m.get(claim)
		idle, there, refusal := k.idle, k.there(), k.refusal
		m.mu.Unlock()
		switch {
		case idle != nil:
			select {
			case <-idle:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case there:
			return nil
		case refusal != nil:
			return refusal
		default:
			return cluster.ErrGone
		}
	}
}

// end says that nothing of the claim's create can be running any more: what was written is removed, what was
// not is forgotten.
func (m *markers) end(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.marks[uid]
	if !ok {
		return
	}
	m.disarm(k)
	k.desired, k.refusal = false, nil
	m.write(ctx, k)
}

// found says that the claim carries a marker that another process has written, as the API server has just told.
func (m *markers) found(claim *corev1.PersistentVolumeClaim, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(claim)
	k.value, k.written, k.desired, k.actual, k.unclear = value, value, true, true, false
}

// removing reports whether the claim carries, or may carry, a marker of ours that is about to go.
func (m *markers) removing(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.marks[uid]
	return ok && !k.desired && (k.actual || k.unclear)
}

// has reports whether the claim carries a marker as far as we know.
func (m *markers) has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.marks[uid]
	return ok && k.there()
}

// wait returns when the last writer has ended.
func (m *markers) wait() { m.writers.Wait() }

// get returns the claim's state, a new one if there is none. mu is held.
func (m *markers) get(claim *corev1.PersistentVolumeClaim) *mark {
	k, ok := m.marks[claim.UID]
	if !ok {
		k = &mark{claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, uid: claim.UID, changed: make(chan struct{}, 1)}
		m.marks[claim.UID] = k
	}
	return k
}

// there reports whether the claim is known to carry the marker.
func (k *mark) there() bool { return k.actual && !k.unclear }

// asDesired reports whether there is nothing to write. After a refusal there is not, until something is asked again.
func (k *mark) asDesired() bool {
	if k.refusal != nil {
		return true
	}
	return !k.unclear && k.desired == k.actual && (!k.desired || k.value == k.written)
}

// disarm stops the timer, or leaves the line. mu is held.
func (m *markers) disarm(k *mark) {
	if k.timer == nil {
		return
	}
	k.timer.Stop()
	k.timer, k.turn = nil, nil
	m.line = slices.DeleteFunc(m.line, func(waiting *mark) bool { return waiting == k })
}

// write starts a writer, or wakes the one that is at work. mu is held.
func (m *markers) write(ctx context.Context, k *mark) {
	switch {
	case k.idle != nil:
		select {
		case k.changed <- struct{}{}:
		default:
		}
	case k.asDesired():
		m.settle(k)
	default:
		k.idle = make(chan struct{})
		m.writers.Go(func() { m.converge(ctx, k) })
	}
}

// settle forgets a state that says nothing. mu is held.
func (m *markers) settle(k *mark) {
	if !k.desired && !k.actual && !k.unclear && k.timer == nil && k.refusal == nil {
		delete(m.marks, k.uid)
	}
}

// converge writes until the claim is as desired, and tries again for as long as ctx lives: a marker that
// stays behind would keep a deleted claim for ever.
func (m *markers) converge(ctx context.Context, k *mark) {
	logger, pause := klog.FromContext(ctx), writePause
	for {
		m.mu.Lock()
		desired, value := k.desired, k.value
		if k.asDesired() {
			close(k.idle)
			k.idle = nil
			m.settle(k)
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()

		sent := true // as far as is known after a panic
		err := loop.Guard(ctx, componentMarkers, func() (err error) {
			sent, err = m.put(ctx, k, value, desired)
			return err
		})
		if m.learn(ctx, k, written{value: value, desired: desired, sent: sent, err: err}) {
			continue
		}
		logger.V(4).Info("Cannot write the claim's marker, trying again", "PVC", klog.KRef(k.claim.Namespace, k.claim.Name), "err", err, "after", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, writePauseMax)
		case <-k.changed:
			pause = writePause
		case <-ctx.Done():
			m.mu.Lock()
			k.refuse(fmt.Errorf("marker not written: %w", err))
			m.mu.Unlock()
		}
	}
}

// put brings the live claim to what is desired. It returns whether a write was sent.
func (m *markers) put(ctx context.Context, k *mark, value string, desired bool) (sent bool, err error) {
	var terminating, taken bool
	_, err = cluster.UpdateClaim(ctx, m.client, k.claim, k.uid, func(live *corev1.PersistentVolumeClaim) bool {
		taken = otherNode(live, m.driver, m.node) != ""
		terminating = desired && live.DeletionTimestamp != nil && !hasMarkerFinalizer(live)
		switch {
		case taken, terminating:
			sent = false
		case desired:
			sent = setMarker(live, value)
		default:
			sent = clearMarker(live)
		}
		return sent
	})
	switch {
	case err == nil && taken && desired:
		return sent, errOtherNode
	case err == nil && terminating:
		return sent, errTerminating
	}
	return sent, err
}

// written is how a try to write a marker ended.
type written struct {
	value         string
	desired, sent bool
	err           error
}

// learn takes down what is on the claim after a try to write. It returns false when the try must be repeated.
func (m *markers) learn(ctx context.Context, k *mark, w written) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	refused := w.desired && refuses(w.err)
	switch {
	case w.err == nil:
		k.actual, k.written, k.unclear = w.desired, w.value, false
		klog.FromContext(ctx).V(2).Info("Marked claim", "PVC", klog.KRef(k.claim.Namespace, k.claim.Name), "provisioning", w.desired)
		return true
	case errors.Is(w.err, cluster.ErrGone):
		k.desired, k.actual, k.unclear = false, false, false
		return true
	case errors.Is(w.err, errTerminating), errors.Is(w.err, errOtherNode):
		k.actual, k.unclear = false, false
	case w.sent:
		k.unclear = !refuses(w.err)
	}
	if refused {
		m.sayRefused(ctx, w.err)
	}
	if refused && k.desired { // else the create has ended meanwhile
		k.refuse(w.err)
	}
	return refused
}

// refuse gives up what is desired in favour of what is there. mu is held.
func (k *mark) refuse(why error) {
	k.refusal, k.desired, k.value = why, k.actual, k.written
}
