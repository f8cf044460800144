package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

const (
	// markRate and markBurst bound how many claims are marked in a second. What waits for its turn and comes to
	// its end meanwhile is not marked at all, so under load the marks go to the creates that take longest.
	markRate, markBurst = 20, 50
	// saveGrace is how long a save may take before the claim is marked after all: as a rule the
	// PersistentVolume is there sooner than the marker would be.
	saveGrace = time.Second
)

// markers writes and removes the markers of claims: one small state machine a claim, which brings what is on
// the claim (actual) to what should be there (desired), one write at a time.
//
//	begin ──▶ armed ──delay──▶ desired ──▶ writing ──▶ actual
//	            │                                        │
//	           end ──▶ nothing to do          end ──▶ removing ──▶ forgotten
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
	writers sync.WaitGroup
}

type mark struct {
	claim           types.NamespacedName
	value           string
	desired, actual bool
	written         string        // the value that the claim carries; meaningless unless actual
	refusal         error         // why the API server will not take it; nil when it may
	timer           *time.Timer   // nil when not armed
	idle            chan struct{} // closed when its writer has ended; nil when there is none
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
	k.value = value
	k.timer = time.AfterFunc(m.delay, func() { m.want(ctx, claim, value) })
}

// answered says that the driver has made the volume, and that the PersistentVolume is about to be saved.
func (m *markers) answered(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.marks[uid]; ok && k.timer != nil && k.timer.Stop() {
		k.timer.Reset(saveGrace)
	}
}

// want asks for the marker now and does not wait for it.
func (m *markers) want(ctx context.Context, claim *corev1.PersistentVolumeClaim, value string) {
	if m.delay < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(claim)
	if k.desired {
		return
	}
	k.disarm()
	k.value, k.desired, k.refusal = value, true, nil
	m.write(ctx, claim.UID, k)
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
		idle, actual, refusal := k.idle, k.actual, k.refusal
		m.mu.Unlock()
		switch {
		case idle != nil:
			select {
			case <-idle:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case actual:
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
	k.disarm()
	k.desired, k.refusal = false, nil
	m.write(ctx, uid, k)
}

// found says that the claim carries a marker that another process has written.
func (m *markers) found(claim *corev1.PersistentVolumeClaim, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(claim)
	k.value, k.written, k.desired, k.actual = value, value, true, true
}

// removing reports whether the claim carries a marker of ours that is about to go.
func (m *markers) removing(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.marks[uid]
	return ok && k.actual && !k.desired
}

// has reports whether the claim carries a marker as far as we know.
func (m *markers) has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.marks[uid]
	return ok && k.actual
}

// wait returns when the last writer has ended.
func (m *markers) wait() { m.writers.Wait() }

// get returns the claim's state, a new one if there is none. mu is held.
func (m *markers) get(claim *corev1.PersistentVolumeClaim) *mark {
	k, ok := m.marks[claim.UID]
	if !ok {
		k = &mark{claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
		m.marks[claim.UID] = k
	}
	return k
}

// asDesired reports whether there is nothing to write.
func (k *mark) asDesired() bool { return k.desired == k.actual && (!k.desired || k.value == k.written) }

func (k *mark) disarm() {
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}

// write starts a writer unless one is at work. mu is held.
func (m *markers) write(ctx context.Context, uid types.UID, k *mark) {
	if k.idle != nil {
		return
	}
	if k.asDesired() {
		m.settle(uid, k)
		return
	}
	k.idle = make(chan struct{})
	m.writers.Go(func() { m.converge(ctx, uid, k) })
}

// settle forgets a state that says nothing. mu is held.
func (m *markers) settle(uid types.UID, k *mark) {
	if !k.desired && !k.actual && k.timer == nil && k.refusal == nil {
		delete(m.marks, uid)
	}
}

// converge writes until the claim is as desired, and tries again for as long as ctx lives: a marker that
// stays behind would keep a deleted claim for ever.
func (m *markers) converge(ctx context.Context, uid types.UID, k *mark) {
	logger := klog.FromContext(ctx)
	pause, hadTurn := 100*time.Millisecond, false
	for {
		m.mu.Lock()
		desired, value := k.desired, k.value
		if k.asDesired() {
			close(k.idle)
			k.idle = nil
			m.settle(uid, k)
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()

		if desired && m.delay > 0 && !hadTurn {
			// An error means that ctx has ended; the write will tell.
			_ = m.turns.Wait(ctx)
			hadTurn = true // one turn is enough
			continue
		}
		err := m.put(ctx, uid, k, value, desired)
		m.mu.Lock()
		switch {
		case err == nil:
			k.actual, k.written = desired, value
			logger.V(2).Info("Marked claim", "PVC", klog.KRef(k.claim.Namespace, k.claim.Name), "provisioning", desired)
		case errors.Is(err, cluster.ErrGone):
			k.desired, k.actual = false, false
		case desired && refuses(err):
			k.desired, k.value, k.refusal = k.actual, k.written, err
			m.sayRefused(ctx, err)
		}
		m.mu.Unlock()
		if err == nil || errors.Is(err, cluster.ErrGone) || (desired && refuses(err)) {
			continue
		}
		logger.V(4).Info("Cannot write the claim's marker, trying again", "PVC", klog.KRef(k.claim.Namespace, k.claim.Name), "err", err, "after", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, 30*time.Second)
		case <-ctx.Done():
			m.mu.Lock()
			k.refusal = fmt.Errorf("marker not written: %w", err)
			k.desired, k.value = k.actual, k.written
			m.mu.Unlock()
		}
	}
}

// put brings the live claim to what is desired.
func (m *markers) put(ctx context.Context, uid types.UID, k *mark, value string, desired bool) error {
	var terminating, taken bool
	_, err := cluster.UpdateClaim(ctx, m.client, k.claim, uid, func(live *corev1.PersistentVolumeClaim) bool {
		taken = otherNode(live, m.driver, m.node) != ""
		switch {
		case taken:
			return false
		case !desired:
			return clearMarker(live)
		}
		terminating = live.DeletionTimestamp != nil && !hasMarkerFinalizer(live)
		return !terminating && setMarker(live, value)
	})
	switch {
	case err == nil && terminating:
		return errTerminating
	case err == nil && taken && desired:
		return errOtherNode
	}
	return err
}
