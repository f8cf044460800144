package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

const (
	// eventWriters is how many events are written at once. Events of one object go through one writer, in order.
	eventWriters = 4
	// maxQueuedEvents bounds what waits for one writer while the API server is away.
	maxQueuedEvents = 5000
	// maxQueuedBytes bounds their messages.
	maxQueuedBytes = 2 << 20
	// maxEventBytes is the longest message, as the conventions of the Kubernetes API have it.
	maxEventBytes = 1024
	// eventMemory is how many objects are remembered, to count events that repeat and to cut floods off, and eventTries how
	// often the API server may fail to take an event before that is dropped. Both are client-go's.
	eventMemory, eventTries = 4096, 12
	// eventRetryStart and eventRetryMax bound the wait before an event is sent again.
	eventRetryStart, eventRetryMax = time.Second, 10 * time.Second
)

// Component returns the source of the events of the claim and volume loop: <driver>_<hostname>_<uuid>. The UUID is
// made from the other two, so that events of a process that was restarted count on.
func Component(driver, hostname string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + hostname))
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80 // version 8: made by a rule of our own
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%s_%s_%x-%x-%x-%x-%x", driver, hostname, id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// Events writes events in the background: what is recorded waits in a queue of its own and is written in the order in
// which it came, for each object. While the API server is away they wait; one that it does not take in twelve tries is dropped,
// and keeps only those of its own object waiting meanwhile. Equal ones are counted, similar ones merged and floods of one
// object cut off, as client-go does. It may be used concurrently.
type Events struct {
	logger klog.Logger
	queues [eventWriters]*eventQueue
}

// NewEvents assembles the writer; Run starts it. What is recorded before waits. The client should be one that
// nothing else uses. ctx gives the logger.
func NewEvents(ctx context.Context, client kubernetes.Interface) *Events {
	e := &Events{logger: klog.FromContext(ctx)}
	correlator := newCorrelator()
	for n := range e.queues {
		e.queues[n] = newEventQueue(client, correlator)
	}
	return e
}

// newCorrelator returns what merges events for all writers. It remembers no more of a message than its hash, and 1 KiB of it
// in the key of each event.
func newCorrelator() *record.EventCorrelator {
	return record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
		LRUCacheSize: eventMemory,
		KeyFunc: func(event *corev1.Event) (aggregate, local string) {
			aggregate, local = record.EventAggregatorByReasonFunc(event)
			sum := sha256.Sum256([]byte(local))
			return aggregate, string(sum[:])
		},
		MessageFunc: func(event *corev1.Event) string {
			return text.Cut(record.EventAggregatorByReasonMessageFunc(event), maxEventBytes)
		},
	})
}

// Run writes events until ctx ends; then it returns, with the number of those that were not written in the error.
// Call Flush first.
func (e *Events) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, e.logger)
	var writers sync.WaitGroup
	for _, q := range e.queues {
		writers.Go(func() { loop.Restart(ctx, "events", q.run) })
	}
	writers.Wait()
	if n := e.queued(); n > 0 {
		return fmt.Errorf("%d events were not written", n)
	}
	return nil
}

// Flush returns when everything recorded so far is written, or with an error when ctx ends before that.
func (e *Events) Flush(ctx context.Context) error {
	for _, q := range e.queues {
		select {
		case <-q.flushed():
		case <-ctx.Done():
			return fmt.Errorf("%d events are not written yet: %w", e.queued(), context.Cause(ctx))
		}
	}
	return nil
}

func (e *Events) queued() int {
	n := 0
	for _, q := range e.queues {
		n += q.len()
	}
	return n
}

// add puts event into the queue of its object.
func (e *Events) add(event *corev1.Event) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(event.InvolvedObject.UID))
	_, _ = hash.Write([]byte(event.InvolvedObject.Name))
	if !e.queues[hash.Sum32()%eventWriters].add(event) {
		e.logger.Error(nil, "Event dropped because too many wait for the API server",
			"object", klog.KRef(event.InvolvedObject.Namespace, event.InvolvedObject.Name), "reason", event.Reason)
	}
}

func (q *eventQueue) send(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, error) {
	events := q.client.CoreV1().Events(result.Event.Namespace)
	if result.Event.Count > 1 {
		written, err := events.PatchWithEventNamespaceWithContext(ctx, result.Event, result.Patch)
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	// New, or the API server has dropped the one that we counted on.
	event := result.Event.DeepCopy()
	event.ResourceVersion = ""
	written, err := events.CreateWithEventNamespaceWithContext(ctx, event)
	if apierrors.IsAlreadyExists(err) {
		return q.countOn(ctx, event)
	}
	return written, err
}

// countOn counts on in an event that is there already: an earlier process has told the same, or this one has forgotten
// that it did. What was counted so far is in the answer to the first of two patches, because there is no right to read.
// If the event expires in between, the error is one after which it is sent again.
func (q *eventQueue) countOn(ctx context.Context, event *corev1.Event) (*corev1.Event, error) {
	patch := func(change eventChange) (*corev1.Event, error) {
		body, err := json.Marshal(change)
		if err != nil {
			return nil, fmt.Errorf("encode the change of an event: %w", err)
		}
		written, err := q.client.CoreV1().Events(event.Namespace).PatchWithEventNamespaceWithContext(ctx, event, body)
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("event %s has expired: %s", event.Name, err.Error())
		}
		return written, err
	}
	there, err := patch(eventChange{LastTimestamp: &event.LastTimestamp})
	if err != nil {
		return nil, err
	}
	return patch(eventChange{Count: there.Count + 1})
}

// eventChange is a strategic merge patch of an event; zero values are left as they are.
type eventChange struct {
	LastTimestamp *metav1.Time `json:"lastTimestamp,omitempty"`
	Count         int32        `json:"count,omitempty"`
}

// refused says that the API server has answered and will answer the same again. Unauthorized is none of it: the client reads
// the token anew when the kubelet has rotated it. One that stays is bounded by eventTries, like any other failure.
func refused(err error) bool {
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		return false
	}
	return !apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err) &&
		!apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) && !apierrors.IsUnauthorized(err)
}

func logRefused(ctx context.Context, event *corev1.Event, err error) {
	logger := klog.FromContext(ctx)
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		logger = logger.V(5)
	}
	logger.Info("API server refuses event", "err", err, "reason", event.Reason,
		"object", klog.KRef(event.InvolvedObject.Namespace, event.InvolvedObject.Name))
}
