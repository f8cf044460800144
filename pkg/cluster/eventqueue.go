package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// eventQueue is what waits for one writer. Events of one object are written in order; an object whose first event cannot be
// written now goes to the back of the line, and no other object waits for it.
type eventQueue struct {
	client     kubernetes.Interface
	correlator *record.EventCorrelator
	wake       chan struct{} // holds one token when the line may have got longer

	mu      sync.Mutex
	objects map[objectKey]*objectEvents
	line    []*objectEvents // those with events, but the one that the writer is at
	waiting int             // events
	bytes   int             // of their messages
	empty   chan struct{}   // closed when nothing waits; nil when nobody asked

	// Of the writer alone.
	answers int           // how often the API server has answered
	pause   time.Duration // before the next try, while it does not answer
}

type objectKey struct {
	uid             types.UID
	namespace, name string
}

// objectEvents are the events of one object that wait. The first one is being written.
type objectEvents struct {
	key    objectKey
	events []*corev1.Event // guarded by mu of the queue

	// Of the writer alone, and about the first event.
	result  *record.EventCorrelateResult // nil before the first try
	tries   int
	answers int           // those of the queue at the last try
	wait    time.Duration // before the next try
	due     time.Time     // when that is
}

func newEventQueue(client kubernetes.Interface, correlator *record.EventCorrelator) *eventQueue {
	return &eventQueue{client: client, correlator: correlator, wake: make(chan struct{}, 1), objects: map[objectKey]*objectEvents{}}
}

// add returns false when too much waits already.
func (q *eventQueue) add(event *corev1.Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting >= maxQueuedEvents || q.bytes+len(event.Message) > maxQueuedBytes {
		return false
	}
	key := objectKey{event.InvolvedObject.UID, event.InvolvedObject.Namespace, event.InvolvedObject.Name}
	o, known := q.objects[key]
	if !known {
		o = &objectEvents{key: key}
		q.objects[key] = o
		q.line = append(q.line, o)
	}
	o.events = append(o.events, event)
	q.waiting++
	q.bytes += len(event.Message)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

func (q *eventQueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// flushed returns a channel that is closed when nothing waits.
func (q *eventQueue) flushed() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	if q.waiting == 0 {
		close(q.empty)
		q.empty = nil
	}
	return empty
}

// next takes the first object out of the line whose time has come, with its first event. When there is none, it returns
// how long to wait for one; zero when none waits for its time.
func (q *eventQueue) next(now time.Time) (o *objectEvents, first *corev1.Event, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, o := range q.line {
		left := o.due.Sub(now)
		if left <= 0 {
			q.line = append(q.line[:i], q.line[i+1:]...)
			return o, o.events[0], 0
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return nil, nil, wait
}

// back brings the object to the back of the line, without its first event when that is done.
func (q *eventQueue) back(o *objectEvents, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if done {
		q.waiting--
		q.bytes -= len(o.events[0].Message)
		o.events[0] = nil
		o.events = o.events[1:]
		o.result, o.tries, o.wait, o.due = nil, 0, 0, time.Time{}
	}
	if len(o.events) > 0 {
		q.line = append(q.line, o)
	} else {
		delete(q.objects, o.key)
	}
	if q.waiting == 0 {
		q.line = nil // the array behind it has moved on
		if q.empty != nil {
			close(q.empty)
			q.empty = nil
		}
	}
}

func (q *eventQueue) run(ctx context.Context) {
	for ctx.Err() == nil {
		o, event, wait := q.next(time.Now())
		if o == nil {
			q.rest(ctx, wait)
			continue
		}
		err := loop.Guard(ctx, "events", func() error { return q.try(ctx, o, event) })
		q.back(o, q.isDone(ctx, o, event, err))
		if q.pause > 0 {
			sleep(ctx, q.pause)
		}
	}
}

// rest waits for an event, or for as long as wait says.
func (q *eventQueue) rest(ctx context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-q.wake:
	case <-due:
	case <-ctx.Done():
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// try sends the event, unless it is too much of the same.
func (q *eventQueue) try(ctx context.Context, o *objectEvents, event *corev1.Event) error {
	if o.result == nil {
		result, err := q.correlator.EventCorrelate(event)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Event cannot be merged with earlier ones", "reason", event.Reason)
		}
		o.result = result
	}
	if o.result.Skip || o.result.Event == nil {
		return nil
	}
	written, err := q.send(ctx, o.result)
	if err == nil {
		q.correlator.UpdateState(written)
	}
	return err
}

// isDone reports whether the event needs no other try, now that the last one has ended with err: it is written, refused, or
// was tried often enough. A try counts when the API server has answered it, or has answered others since the one before:
// while it is away, all events wait.
func (q *eventQueue) isDone(ctx context.Context, o *objectEvents, event *corev1.Event, err error) bool {
	if ctx.Err() != nil && err != nil {
		return false
	}
	_, panicked := errors.AsType[*loop.PanicError](err)
	_, answered := errors.AsType[*apierrors.StatusError](err)
	if err == nil || answered || panicked {
		q.answers++
		q.pause = 0
	} else {
		q.pause = min(max(2*q.pause, eventRetryStart), eventRetryMax)
	}
	switch {
	case err == nil:
		return true
	case refused(err):
		logRefused(ctx, event, err)
		return true
	}
	if q.answers > o.answers {
		o.tries++
	}
	o.answers = q.answers
	if o.tries >= eventTries {
		klog.FromContext(ctx).Error(err, "Event dropped because the API server does not take it", "tries", o.tries, "reason", event.Reason,
			"object", klog.KRef(event.InvolvedObject.Namespace, event.InvolvedObject.Name))
		return true
	}
	o.wait = min(max(2*o.wait, eventRetryStart), eventRetryMax)
	o.due = time.Now().Add(o.wait)
	klog.FromContext(ctx).V(2).Info("Event is sent again later", "reason", err.Error(), "after", o.wait)
	return false
}
